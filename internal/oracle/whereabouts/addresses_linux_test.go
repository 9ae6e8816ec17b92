package whereabouts

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestEachAddressIsGivenOnce: eight containers at once on each of two hosts get addresses of
// both families, and reach each other. What they leave goes back to the store.
func TestEachAddressIsGivenOnce(t *testing.T) {
	for name, main := range mains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			hosts := []*host{c.a, c.b}
			runtimes := []*cni.Runtime{c.a.Runtime(c.a.on(main, bothFamilies)), c.b.Runtime(c.b.on(main, bothFamilies))}
			var all []*attached
			for i := range 16 {
				all = append(all, container(t, fmt.Sprintf("c%02d", i)))
			}
			of := func(i int) *cni.Runtime { return runtimes[i%len(hosts)] }
			expect.NoError(t, testhost.InParallel(len(all), func(i int) error { return all[i].attach(t.Context(), of(i)) }))

			expect.Same(t, "the store has", c.held(t), linesOf(all...))
			for n, r := range runtimes {
				var want []string
				for i, a := range all {
					if i%len(hosts) == n {
						expect.Same(t, "families of "+a.id, len(a.addresses), 2)
						want = append(want, a.id+": healthy [whereabouts]")
					}
				}
				expect.Same(t, "verdicts", verdicts(t, r), want)
				expect.NoError(t, r.Check(t.Context(), all[n].id, all[n].path))
			}
			all[0].reaches(t, hosts[0].namespace(all[1].path))
			all[1].reaches(t, hosts[0].namespace(all[0].path))

			expect.NoError(t, testhost.InParallel(len(all), func(i int) error { return of(i).Remove(t.Context(), all[i].id, all[i].path) }))
			expect.Same(t, "the store has", c.held(t), []string{})
		})
	}
}

// detectDuplicates has the kernel look for other machines with the IPv6 addresses of a
// container, which is off in the hosts of package cnitest.
func detectDuplicates(t *testing.T, a *attached) {
	t.Helper()
	expect.NoError(t, netns.Do(a.path, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("1"), 0o644)
	}))
}

// TestAnIPv6AddressThatIsInUseIsRefused: the store gives an address that a machine on the
// network has. The ADD fails, and leaves nothing on the host or in the store. The store gives
// the address to the next container too, until the administrator excludes it.
func TestAnIPv6AddressThatIsInUseIsRefused(t *testing.T) {
	const ranges = `"ipRanges": [{"range": "10.1.0.0/24", "range_start": "10.1.0.99"%s}, {"range": "fd00::/64", "range_start": "fd00::99"%s}]`
	for name, main := range mains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			h, c1 := c.a, container(t, "c1")
			detectDuplicates(t, c1)
			r := h.Runtime(h.on(main, fmt.Sprintf(ranges, "", "")))
			before := h.Audit()
			for range 2 {
				expect.Says(t, "ADD", c1.attach(t.Context(), r), "address fd00::99/64 belongs to another machine")
				h.unchanged(before)
				expect.Same(t, "on record", recorded(t, r), []string{})
				expect.Same(t, "the store has", c.held(t), []string{})
			}
			r = h.Runtime(h.on(main, fmt.Sprintf(ranges, `, "exclude": ["10.1.0.99/32"]`, `, "exclude": ["fd00::99/128"]`)))
			expect.NoError(t, c1.attach(t.Context(), r))
			expect.Same(t, "addresses", c1.addresses, []netip.Addr{netip.MustParseAddr("10.1.0.100"), netip.MustParseAddr("fd00::9a")})
			for _, address := range []string{"10.1.0.99", "fd00::99"} {
				plugintest.Connect(t, h.namespace(c1.path), c.lan.Machine, netip.MustParseAddr(address))
			}
			c1.remove(t, r)
		})
	}
}

// TestAnIPv4AddressIsBelieved: the kernel does not look for machines that have an IPv4
// address, so a container without IPv6 gets what the store gives.
func TestAnIPv4AddressIsBelieved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	h := c.a
	r := h.Runtime(h.on(macvlan, `"range": "10.1.0.0/24", "range_start": "10.1.0.99"`))
	c1 := h.setUp(r, "c1")
	expect.Same(t, "addresses", c1.addresses, []netip.Addr{netip.MustParseAddr("10.1.0.99")})
	expect.Same(t, "verdicts", verdicts(t, r), []string{"c1: healthy [whereabouts]"})
	c1.remove(t, r)
}

// TestALostAllocationHarmsNobody: the store forgets the addresses of a container that lives. It
// keeps them, and nothing of it is repaired. The store gives them to a container of another
// host, whose ADD fails.
func TestALostAllocationHarmsNobody(t *testing.T) {
	for name, main := range mains {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			a, b := c.a.Runtime(c.a.on(main, bothFamilies)), c.b.Runtime(c.b.on(main, bothFamilies))
			c1, c2 := c.a.setUp(a, "c1"), container(t, "c2")
			c.lose("c1")
			lives := func() {
				t.Helper()
				expect.Same(t, "the store has", c.held(t), []string{})
				expect.Same(t, "verdicts", verdicts(t, a), []string{"c1: healthy [whereabouts]"})
				expect.NoError(t, a.Check(t.Context(), c1.id, c1.path))
				report := expect.Value(a.Repair(t.Context(), c1.id, cni.RepairOptions{Inside: true}))(t)
				expect.Same(t, "repair", *report, cni.RepairReport{ContainerID: "c1"})
				c1.reaches(t, c.lan.Machine)
			}
			lives()
			detectDuplicates(t, c2)
			before := c.b.Audit()
			expect.Says(t, "ADD", c2.attach(t.Context(), b), "belongs to another machine")
			c.b.unchanged(before)
			expect.Same(t, "on record", recorded(t, b), []string{})
			lives()

			c1.remove(t, a)
			expect.NoError(t, c2.attach(t.Context(), b))
			expect.Same(t, "addresses", c2.addresses, c1.addresses)
			c2.remove(t, b)
			expect.Same(t, "the store has", c.held(t), []string{})
		})
	}
}

// TestADELReleasesNoAddressOfAnother: where nobody noticed that two containers have an address,
// the DEL of the one that lost it leaves it to the other.
func TestADELReleasesNoAddressOfAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const ipv4 = `"range": "10.1.0.0/24"`
	a, b := c.a.Runtime(c.a.on(macvlan, ipv4)), c.b.Runtime(c.b.on(macvlan, ipv4))
	c1 := c.a.setUp(a, "c1")
	c.lose("c1")
	c2 := c.b.setUp(b, "c2")
	expect.Same(t, "addresses", c2.addresses, c1.addresses)
	c1.remove(t, a)
	expect.Same(t, "the store has", c.held(t), linesOf(c2))
	expect.Same(t, "verdicts", verdicts(t, b), []string{"c2: healthy [whereabouts]"})
	c2.reaches(t, c.lan.Machine)
	c2.remove(t, b)
}

// TestAnAddressThatTheStoreHasNot: without enable_overlapping_ranges, whereabouts reports the
// address of a range but the last although the store has not taken it. The container is
// attached, and another one gets the address too.
func TestAnAddressThatTheStoreHasNot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const ranges = `"enable_overlapping_ranges": false, ` + bothFamilies
	a, b := c.a.Runtime(c.a.on(macvlan, ranges)), c.b.Runtime(c.b.on(macvlan, ranges))
	c.a.setUp(a, "first").remove(t, a) // the store has the pools
	c1 := container(t, "c1")
	c.strikeAt("PATCH ippools/10.1.0.0-24", c1.befalls(t, "cut before", nil))
	expect.NoError(t, c1.attach(t.Context(), a))
	expect.Same(t, "the store has", c.held(t), []string{"fd00::1 of c1/eth0"})
	c2 := c.b.setUp(b, "c2")
	expect.Same(t, "addresses", c2.addresses, []netip.Addr{c1.addresses[0], netip.MustParseAddr("fd00::2")})
	expect.Same(t, "verdicts", append(verdicts(t, a), verdicts(t, b)...), []string{"c1: healthy [whereabouts]", "c2: healthy [whereabouts]"})
	c1.remove(t, a)
	expect.Same(t, "the store has", c.held(t), []string{"10.1.0.1 of c2/eth0", "fd00::1 of c1/eth0", "fd00::2 of c2/eth0"})
	c2.remove(t, b)
}

// TestWhereaboutsHasNoCHECK: its CHECK fails for every container. Without disableCheck a
// healthy container is broken for Health; Repair and Recover leave it as it is.
func TestWhereaboutsHasNoCHECK(t *testing.T) {
	t.Parallel()
	const says = "CNI CHECK method is not implemented"
	c := newCluster(t)
	h := c.a
	r := h.Runtime(h.checked("1.0.0"))
	c1 := h.setUp(r, "c1")
	expect.Says(t, "CHECK", r.Check(t.Context(), c1.id, c1.path), says)
	expect.Same(t, "verdicts", verdicts(t, r), []string{"c1: broken []"})
	report := expect.Value(r.Repair(t.Context(), c1.id, cni.RepairOptions{Inside: true}))(t)
	expect.Is(t, report.Err(), cni.ErrNotRepairable)
	expect.Says(t, "Repair", report.Err(), says)
	recovered := expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "adopted", recovered.Adopted, []string{"c1"})
	expect.Says(t, "Recover", recovered.Kept["c1"], says)
	c1.reaches(t, c.lan.Machine)
	expect.Same(t, "the store has", c.held(t), linesOf(c1))
	c1.remove(t, r)
}

// TestWhereaboutsHasNoSTATUS: the node can take containers as far as its plugins tell, although
// no ADD succeeds without the store.
func TestWhereaboutsHasNoSTATUS(t *testing.T) {
	t.Parallel()
	h := newCluster(t).a
	r := h.Runtime(h.checked("1.1.0"), impatient)
	h.lose()
	expect.NoError(t, r.Status(), r.Ready(t.Context()))
}

// checked is a network without disableCheck.
func (h *host) checked(version string) cni.Opt {
	return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": %q, "name": "lan", "plugins": [%s]}`, version, h.plugin(macvlan, bothFamilies)))
}
