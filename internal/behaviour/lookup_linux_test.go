package behaviour_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// dualList is a bridge with addresses of both families.
func dualList(h *realHost) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]}},
		{"type": "firewall"}]}`, h.Path("ipam"))
}

// whoHas returns the containers that have an address, as "c1/eth0".
func whoHas(t *testing.T, r *cni.Runtime, addr string) []string {
	t.Helper()
	all, err := r.LookupAddr(netip.MustParseAddr(addr))
	if all == nil {
		expect.Is(t, err, cni.ErrNotAttached)
		return nil
	}
	expect.NoError(t, err)
	var names []string
	for _, a := range all {
		names = append(names, a.ContainerID+"/"+a.IfName)
	}
	slices.Sort(names)
	return names
}

// TestLookupAddrFindsTheContainer, in another process too, whatever that has seen before.
func TestLookupAddrFindsTheContainer(t *testing.T) {
	h := newRealHost(t)
	opts := []cni.Opt{cni.WithPluginDir(nil), cni.WithLoNetwork, cni.WithConfListBytes(dualList(h))}
	r, other := h.Runtime(opts...), h.Runtime(append(opts, cni.WithOwner("other"))...)
	addrs := map[string]cni.Address{}
	for _, id := range []string{"c1", "c2"} {
		result, err := r.Setup(t.Context(), id, h.Container(id))
		expect.NoError(t, err)
		addrs[id] = result.IPv4()
		expect.Same(t, "IPv4", whoHas(t, other, result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "IPv6", whoHas(t, other, result.IPv6().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "mapped", whoHas(t, r, "::ffff:"+result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "the host's", whoHas(t, other, result.IPv4().Gateway.String()), nil)
	}
	all, err := other.LookupAddr(addrs["c2"].IP())
	expect.NoError(t, err)
	listed, err := other.Attachments()
	expect.NoError(t, err)
	i := slices.IndexFunc(listed, func(a cni.Attachment) bool { return a.ContainerID == "c2" && a.IfName == "eth1" })
	expect.Same(t, "attachment", all, listed[i:i+1])

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "removed", whoHas(t, other, addrs["c1"].IP().String()), nil)
	for _, addr := range []string{"127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"} {
		_, err := r.LookupAddr(netip.MustParseAddr(addr))
		expect.Is(t, err, cni.ErrInvalidArgument)
	}
	_, err = r.LookupAddr(netip.Addr{})
	expect.Is(t, err, cni.ErrInvalidArgument)

	h.ChangeRecord("c2", func(rec *record.Record) { rec.Boot = "another" })
	expect.Same(t, "of an earlier boot", whoHas(t, other, addrs["c2"].IP().String()), nil)
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}

// TestLookupAddrOfADamagedRecord: the address may be in use.
func TestLookupAddrOfADamagedRecord(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	result, err := r.Setup(t.Context(), "c1", h.Container("c1"))
	expect.NoError(t, err)
	h.SpoilBase("c1", "{")
	all, err := r.LookupAddr(result.IPv4().IP())
	expect.NoError(t, err)
	expect.Same(t, "state", []any{len(all), all[0].ContainerID, all[0].State}, []any{1, "c1", cni.Unknown})
	expect.NoError(t, r.Remove(t.Context(), "c1", h.Path("netns", "c1")))
}

// inside runs f with a handle in a container's namespace.
func (h *realHost) inside(id string, f func(eth0 netlink.Link) error) {
	h.T.Helper()
	h.Inside(h.Path("netns", id), func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return f(link)
	})
}

func addr(t *testing.T, text string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(text)
	expect.NoError(t, err)
	return a
}

// addressesOf are those of a Result, in order, with their gateways.
func addressesOf(r *cni.Result) (all []string) {
	for _, a := range r.Networks[0].Interfaces[len(r.Networks[0].Interfaces)-1].Addresses {
		all = append(all, fmt.Sprint(a.Prefix, " via ", a.Gateway))
	}
	return all
}

// TestRefreshSeesAddressesThatComeLater, and forgets those that go. Only reports go by
// them: what was not of the ADD is neither compared, nor released, nor removed.
func TestRefreshSeesAddressesThatComeLater(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	// The neighbour has, and host-local has reserved, an address that c1 will have too.
	neighbour, err := r.Setup(t.Context(), "c2", h.Container("c2"))
	expect.NoError(t, err)
	before := h.Audit()
	result, err := r.Setup(t.Context(), "c1", h.Container("c1"))
	expect.NoError(t, err)
	v4, v6 := result.IPv4(), result.IPv6()
	want := []string{fmt.Sprint(v4.Prefix, " via ", v4.Gateway), fmt.Sprint(v6.Prefix, " via ", v6.Gateway)}

	now, err := r.Refresh(t.Context(), "c1", cni.RefreshOptions{})
	expect.NoError(t, err)
	expect.Same(t, "unchanged", addressesOf(now), want)

	stolen := neighbour.IPv4().Prefix
	h.inside("c1", func(eth0 netlink.Link) error {
		for _, a := range []string{"2001:db8::5/64", stolen.String(), "10.99.0.5/24"} {
			another := addr(t, a)
			another.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(eth0, another); err != nil {
				return err
			}
		}
		return nil
	})
	later := []string{
		want[0], want[1],
		"10.99.0.5/24 via " + v4.Gateway.String(), fmt.Sprint(stolen, " via ", v4.Gateway), "2001:db8::5/64 via " + v6.Gateway.String(),
	}
	now, err = r.Refresh(t.Context(), "c1", cni.RefreshOptions{})
	expect.NoError(t, err)
	expect.Same(t, "later", addressesOf(now), later)
	expect.Same(t, "without a note", addressesOf(expect.Value(r.Lookup("c1"))(t)), want)
	expect.Same(t, "without a note", whoHas(t, r, "2001:db8::5"), nil)

	size := recordSize(h, "c1")
	for range 3 { // once is enough
		_, err = r.Refresh(t.Context(), "c1", cni.RefreshOptions{Note: true})
		expect.NoError(t, err)
	}
	noted := recordSize(h, "c1")
	if noted <= size || noted > size+2048 {
		t.Errorf("the record has grown from %d to %d bytes", size, noted)
	}
	restarted := h.Runtime(cni.WithPluginDir(nil))
	expect.Same(t, "noted", addressesOf(expect.Value(restarted.Lookup("c1"))(t)), later)
	expect.Same(t, "noted", whoHas(t, restarted, "2001:db8::5"), []string{"c1/eth0"})
	expect.Same(t, "both", whoHas(t, restarted, stolen.Addr().String()), []string{"c1/eth0", "c2/eth0"})
	verdict, err := restarted.Health(t.Context(), cni.HealthOptions{})
	expect.NoError(t, err)
	expect.Same(t, "healthy", verdict.Count(cni.StateHealthy), 2)

	h.inside("c1", func(eth0 netlink.Link) error { return netlink.AddrDel(eth0, addr(t, v6.Prefix.String())) })
	now, err = r.Refresh(t.Context(), "c1", cni.RefreshOptions{Note: true})
	expect.NoError(t, err)
	expect.Same(t, "gone", addressesOf(now), slices.Delete(slices.Clone(later), 1, 2))
	expect.Same(t, "gone", whoHas(t, restarted, v6.IP().String()), nil)

	_, err = r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true}) // it is of the ADD
	expect.NoError(t, err)
	now, err = r.Refresh(t.Context(), "c1", cni.RefreshOptions{})
	expect.NoError(t, err)
	expect.Same(t, "repaired", now.IPv6(), v6)

	expect.NoError(t, restarted.Remove(t.Context(), "c1", ""))
	h.WantClean(before) // the neighbour's reservation and rules are there
	report, err := restarted.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	expect.NoError(t, err)
	expect.Same(t, "reclaimed", report.Reclaimed, nil)
	h.WantClean(before)
	if _, err := os.Stat(filepath.Join(h.Path("ipam", "net"), stolen.Addr().String())); err != nil {
		t.Errorf("the neighbour's reservation: %v", err)
	}
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}

// TestRefreshWaitsForNoDetection: an address that another machine may have is nobody's
// yet.
func TestRefreshWaitsForNoDetection(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	result, err := r.Setup(t.Context(), "c1", h.Container("c1"))
	expect.NoError(t, err)
	h.inside("c1", func(eth0 netlink.Link) error {
		for setting, value := range map[string]string{"dad_transmits": "1000", "accept_dad": "1"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/"+setting, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return netlink.AddrAdd(eth0, addr(t, "2001:db8::7/64"))
	})
	now, err := r.Refresh(t.Context(), "c1", cni.RefreshOptions{Note: true})
	expect.NoError(t, err)
	expect.Same(t, "addresses", addressesOf(now), addressesOf(result))
	expect.Same(t, "tentative", whoHas(t, r, "2001:db8::7"), nil)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

func recordSize(h *realHost, id string) int64 {
	h.T.Helper()
	info, err := os.Stat(h.RecordFile(id) + ".json")
	expect.NoError(h.T, err)
	return info.Size()
}

// TestRefreshOfAContainerThatIsNotThere changes nothing, and says why.
func TestRefreshOfAContainerThatIsNotThere(t *testing.T) {
	for what, tt := range map[string]struct {
		happens func(h *realHost)
		is      error
	}{
		"never attached":       {func(h *realHost) { h.Unrecord("c1") }, cni.ErrNotAttached},
		"without an interface": {func(h *realHost) { h.inside("c1", netlink.LinkDel) }, cni.ErrNotAttached},
		"of an earlier boot":   {func(h *realHost) { h.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" }) }, nil},
		"with a spoilt record": {func(h *realHost) { h.SpoilBase("c1", "{") }, record.ErrBad},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
			expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", h.Container("c1"))())
			tt.happens(h)
			before := h.Audit()
			result, err := r.Refresh(t.Context(), "c1", cni.RefreshOptions{Note: true})
			if result != nil || err == nil {
				t.Errorf("%v, %v", result, err)
			}
			if tt.is != nil {
				expect.Is(t, err, tt.is)
			}
			h.WantClean(before)
			expect.NoError(t, r.Remove(t.Context(), "c1", h.Path("netns", "c1")))
		})
	}
}
