package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

func newNS(t testing.TB, name string) *netns.Handle {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	ns := expect.Value(netns.Create(path))(t)
	t.Cleanup(func() { expect.NoError(t, errors.Join(netns.Remove(path), ns.Close())) })
	return ns
}

func mustDial(t testing.TB, ns *netns.Handle) *Conn {
	t.Helper()
	c := expect.Value(Dial(ns))(t)
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	return c
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		expect.NoError(t, err)
		return v
	}
}

func TestConnectPutsThePairInPlace(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h, c := mustDial(t, host), mustDial(t, container)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	mac := []byte{2, 0, 0, 0, 0, 9}
	pair := must[Pair](t)(Veth{Name: "eth0", MAC: mac, MTU: 1400, Master: br.Index}.Create(h, container))

	inside := must[Link](t)(c.Link("eth0"))
	outside := must[Link](t)(h.Link(pair.Host.Name))
	want := Link{
		Index: inside.Index, Name: "eth0", Type: Type{Kind: "veth"}, MAC: mac, MTU: 1400, QueueLength: inside.QueueLength,
		State: State{Flags: inside.Flags &^ unix.IFF_UP, OperState: inside.OperState},
		Peer:  Peer{Index: outside.Index, Elsewhere: true, NetNS: must[int](t)(c.NetNS(host))}, Settings: inside.Settings,
	}
	expect.Same(t, "in the container", inside, want)
	want = Link{
		Index: pair.Host.Index, Name: pair.Host.Name, Type: Type{Kind: "veth"}, MAC: pair.Host.MAC, MTU: 1400, QueueLength: outside.QueueLength,
		State: State{Flags: outside.Flags | unix.IFF_UP, OperState: outside.OperState},
		Peer:  Peer{Index: inside.Index, Elsewhere: true, NetNS: must[int](t)(h.NetNS(container))},
		Port:  Port{Master: br.Index, Number: 1}, Settings: outside.Settings,
	}
	expect.Same(t, "on the host", outside, want)
	expect.Same(t, "the index that Connect returns", pair.Container.Index, inside.Index)
}

// TestAPortHasNoLinkLocalAddress: only interfaces outside a bridge have one.
func TestAPortHasNoLinkLocalAddress(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h := mustDial(t, host)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for _, tt := range []struct {
		veth Veth
		want int
	}{{Veth{Name: "eth0", Master: br.Index}, 0}, {Veth{Name: "eth1"}, 1}} {
		pair := must[Pair](t)(tt.veth.Create(h, container))
		c := mustDial(t, container)
		expect.NoError(t, c.Up(pair.Container.Index))
		expect.Eventually(t, fmt.Sprintf("%s: %d addresses", tt.veth.Name, tt.want), func() bool {
			// The container's end gets one at the same time.
			inside := must[[]Address](t)(c.Addresses(pair.Container.Index))
			have := must[[]Address](t)(h.Addresses(pair.Host.Index))
			return len(inside) == 1 && len(have) == tt.want
		})
	}
}

func TestConnectToANameThatIsTaken(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h := mustDial(t, host)
	must[Pair](t)(Veth{Name: "eth0"}.Create(h, container))
	_, err := Veth{Name: "eth0"}.Create(h, container)
	want := `interface "eth0" exists in the container already: file exists`
	expect.That(t, err != nil && err.Error() == want && errors.Is(err, unix.EEXIST), "got %v, want %s", err, want)
}

func TestLinkThatIsNotThere(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	for _, name := range []string{"none", "a-name-that-is-too-long"} {
		_, err := c.Link(name)
		expect.That(t, NotFound(err), "%s: got %v", name, err)
	}
	_, err := c.LinkByIndex(99)
	expect.That(t, NotFound(err), "index 99: got %v", err)
	expect.NoError(t, c.Delete(99))
}

// TestLinksAreAll: the list is complete even if it needs several reads, and a
// changed link shows its change.
func TestLinksAreAll(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	want := map[string]Link{"lo": must[Link](t)(c.Link("lo"))}
	for i := range 40 {
		l := must[Link](t)(Bridge{Name: fmt.Sprint("br", i)}.Create(c))
		alias, length := fmt.Sprint("alias ", i), i
		expect.NoError(t, c.Change(l.Index, Change{
			Name: fmt.Sprint("new", i), Alias: &alias, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, MTU: 1400 + i, QueueLength: &length,
		}))
		want[fmt.Sprint("new", i)] = Link{Name: fmt.Sprint("new", i), Alias: alias, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}, MTU: 1400 + i, QueueLength: length}
	}
	got := must[[]Link](t)(c.Links())
	expect.Same(t, "interfaces", len(got), len(want))
	for _, l := range got {
		expect.Same(t, l.Name+" in the list", l, must[Link](t)(c.Link(l.Name)))
		w := want[l.Name]
		expect.That(t, l.Alias == w.Alias && l.MAC.String() == w.MAC.String() && l.MTU == w.MTU && l.QueueLength == w.QueueLength,
			"got %+v, want %+v", l, w)
	}
}

// TestLinksAreListedAgain if interfaces come and go meanwhile.
func TestLinksAreListedAgain(t *testing.T) {
	ns := newNS(t, "ns")
	c, other := mustDial(t, ns), mustDial(t, ns)
	stays := make([]Link, 60)
	for i := range stays {
		stays[i] = must[Link](t)(Bridge{Name: fmt.Sprint("br", i)}.Create(c))
	}
	// Each change interrupts one attempt at most, and Links makes ten.
	churn := func() error {
		for range 4 {
			l, err := Bridge{Name: "coming"}.Create(other)
			if err == nil {
				err = other.Delete(l.Index)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for range 20 {
		churned := make(chan error, 1)
		go func() { churned <- churn() }()
		got, err := c.Links()
		expect.NoError(t, <-churned, err)
		for _, l := range stays {
			expect.That(t, slices.ContainsFunc(got, func(g Link) bool { return g.Index == l.Index }), "%s is missing", l.Name)
		}
	}
}

func TestNetNSWithoutANumber(t *testing.T) {
	ns, other := newNS(t, "ns"), newNS(t, "other")
	expect.Same(t, "index", must[int](t)(mustDial(t, ns).NetNS(other)), -1)
}

func TestKernelErrorHasTheKernelsWords(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	_, err := Bridge{Name: "br0", MTU: 70000}.Create(c)
	want := `create bridge "br0": invalid argument (mtu greater than device maximum)`
	expect.That(t, err != nil && err.Error() == want && errors.Is(err, unix.EINVAL), "got %v, want %s", err, want)
	// The socket still works afterwards.
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	expect.Is(t, expect.Err(Bridge{Name: "br0"}.Create(c)), unix.EEXIST)
}

func TestAddressesAreUsableAtOnce(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	must[Link](t)(Bridge{Name: "br1"}.Create(c))
	want := []Address{
		{Prefix: netip.MustParsePrefix("10.1.0.1/24")},
		{Prefix: netip.MustParsePrefix("fd00::1/64")},
	}
	for _, a := range want {
		expect.NoError(t, c.AddAddress(br.Index, a.Prefix, false))
		expect.Is(t, c.AddAddress(br.Index, a.Prefix, false), unix.EEXIST)
	}
	expect.Same(t, "addresses", must[[]Address](t)(c.Addresses(br.Index)), want)
	got := must[[]Address](t)(c.Addresses(br.Index + 1))
	expect.That(t, got == nil, "the neighbour has %v", got)
	for range 2 {
		for _, a := range want {
			expect.NoError(t, c.DeleteAddress(br.Index, a.Prefix))
		}
	}
	got = must[[]Address](t)(c.Addresses(br.Index))
	expect.That(t, got == nil, "left %v", got)
}

func TestDetectLeavesAnAddressTentative(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	p := netip.MustParsePrefix("fd00::1/64")
	expect.NoError(t, c.AddAddress(br.Index, p, true))
	want := []Address{{Prefix: p, Tentative: true}}
	expect.Same(t, "addresses", must[[]Address](t)(c.Addresses(br.Index)), want)
}

func TestRoutesAreThoseOfTheInterface(t *testing.T) {
	host, container := newNS(t, "host"), newNS(t, "container")
	h, c := mustDial(t, host), mustDial(t, container)
	pair := must[Pair](t)(Veth{Name: "eth0"}.Create(h, container))
	other := must[Pair](t)(Veth{Name: "eth1"}.Create(h, container))
	up := func(p Pair, addrs ...string) {
		for _, a := range addrs {
			m := addressMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_ACK, p.Container.Index, netip.MustParsePrefix(a))
			m.AddData(u32(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)) // without a route to the subnet
			expect.NoError(t, c.execute(m, nil))
		}
		expect.NoError(t, c.Change(p.Container.Index, Change{Set: unix.IFF_UP}))
	}
	up(pair, "10.1.0.2/24", "fd00::2/64")
	up(other, "10.2.0.2/24")
	routes := []Route{
		{Dst: netip.MustParsePrefix("10.1.0.1/32"), Src: netip.MustParseAddr("10.1.0.2"), Scope: unix.RT_SCOPE_LINK, Table: unix.RT_TABLE_MAIN},
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1"), Table: unix.RT_TABLE_MAIN},
		{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.1.0.1"), Table: 1000, Priority: 7, MTU: 1300, AdvMSS: 1200},
		{Dst: netip.MustParsePrefix("fd00::1/128"), Table: unix.RT_TABLE_MAIN, Priority: 1024},
		{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fd00::1"), Table: unix.RT_TABLE_MAIN, Priority: 1024},
	}
	for _, r := range routes {
		expect.NoError(t, c.AddRoute(pair.Container.Index, r, false))
		expect.Is(t, c.AddRoute(pair.Container.Index, r, false), unix.EEXIST)
	}
	expect.NoError(t, c.AddRoute(other.Container.Index, Route{Dst: netip.MustParsePrefix("10.8.0.0/16")}, true))
	got := map[string]Route{}
	for _, r := range must[[]Route](t)(c.Routes(pair.Container.Index)) {
		if r.Dst != netip.MustParsePrefix("fe80::/64") && !r.Dst.Addr().IsMulticast() {
			got[r.Dst.String()] = r
		}
	}
	want := map[string]Route{}
	for _, r := range routes {
		r.MTU, r.AdvMSS, r.Interface = 0, 0, pair.Container.Index // the first two are not read
		want[r.Dst.String()] = r
	}
	expect.Same(t, "all", got, want)
	expect.NoError(t, c.DeleteRoute(pair.Container.Index, Route{Dst: routes[0].Dst, Scope: unix.RT_SCOPE_NOWHERE}))
}

func TestSysctls(t *testing.T) {
	ns := newNS(t, "ns")
	all := []Sysctl{
		{Path: "net/ipv4/ip_forward", Value: "1"},
		{Path: "net/ipv6/conf/none/accept_ra", Value: "0", Optional: true},
	}
	c := mustDial(t, ns)
	expect.NoError(t, SetSysctls(c, ns, all...), SetSysctls(c, ns, all...))
	if v4, v6 := Forwarding(c, false), Forwarding(c, true); !v4 || v6 {
		t.Errorf("got forwarding of IPv4 %t, of IPv6 %t, want only the first", v4, v6)
	}
	all[1].Optional = false
	err := SetSysctls(c, ns, all...)
	want := "in namespace " + ns.ID().String() + ": set sysctl net/ipv6/conf/none/accept_ra to 0: open /proc/sys/net/ipv6/conf/none/accept_ra: no such file or directory"
	expect.That(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
}

func TestPrefix(t *testing.T) {
	for name, test := range map[string]struct {
		in   net.IPNet
		want string
	}{
		"IPv4":               {net.IPNet{IP: net.IP{10, 1, 0, 2}, Mask: net.CIDRMask(24, 32)}, "10.1.0.2/24"},
		"IPv4 in 16 bytes":   {net.IPNet{IP: net.ParseIP("10.1.0.2"), Mask: net.CIDRMask(24, 32)}, "10.1.0.2/24"},
		"IPv4, both in 16":   {net.IPNet{IP: net.ParseIP("10.1.0.2"), Mask: net.CIDRMask(120, 128)}, "10.1.0.2/24"},
		"IPv6":               {net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}, "fd00::2/64"},
		"IPv6, mask of IPv4": {net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(24, 32)}, ""},
		"no address":         {net.IPNet{Mask: net.CIDRMask(24, 32)}, ""},
		"a mask with a hole": {net.IPNet{IP: net.IP{10, 1, 0, 2}, Mask: net.IPMask{255, 0, 255, 0}}, ""},
		"too short for IPv4": {net.IPNet{IP: net.ParseIP("10.1.0.2"), Mask: net.CIDRMask(64, 128)}, ""},
	} {
		got, err := Prefix(test.in)
		expect.That(t, (err == nil) == (test.want != "") && (err != nil || got.String() == test.want),
			"%s: got %v, %v, want %q", name, got, err, test.want)
	}
}

// TestDumpInSeveralParts: a dump exceeds one read.
func TestDumpInSeveralParts(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	want := map[netip.Prefix]bool{}
	for i := range 500 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)}), 32)
		want[p] = true
		expect.NoError(t, c.AddAddress(br.Index, p, false))
	}
	got := map[netip.Prefix]bool{}
	for _, a := range must[[]Address](t)(c.Addresses(br.Index)) {
		got[a.Prefix] = true
	}
	expect.Same(t, "number of addresses", got, want)
}

func TestGroupsHaveThoseOfAddresses(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	p := netip.MustParsePrefix("fd00::12:3456/64")
	expect.NoError(t, c.Change(br.Index, Change{Set: unix.IFF_UP}))
	expect.NoError(t, c.AddAddress(br.Index, p, false))
	want := netip.MustParseAddr("ff02::1:ff12:3456")
	if got := Solicited(p.Addr()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	expect.Eventually(t, "the group", func() bool { return slices.Contains(must[[]netip.Addr](t)(Groups(c, br.Index)), want) })
}
