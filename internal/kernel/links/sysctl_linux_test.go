package links

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// told returns a link as the kernel describes it, with some settings of each
// family.
func told(t *testing.T, v4, v6 map[int]uint32) Link {
	t.Helper()
	array := func(size int, values map[int]uint32) []byte {
		b := make([]byte, 4*size)
		for i, v := range values {
			native.PutUint32(b[4*i:], v)
		}
		return b
	}
	families := []attribute{nest(unix.AF_INET, data(unix.IFLA_INET_CONF, array(33, v4)...))}
	if v6 != nil { // from an old kernel
		families = append(families, nest(unix.AF_INET6, u32(unix.IFLA_INET6_FLAGS, 5), data(unix.IFLA_INET6_CONF, array(30, v6)...)))
	}
	m := parse(unix.RTM_NEWLINK, body(request(unix.RTM_NEWLINK, 0, ifinfo(7, 0, 0), str(unix.IFLA_IFNAME, "eth0"), nest(unix.IFLA_AF_SPEC, families...))))
	expect.NoError(t, *m.bad)
	return parseLink(m)
}

func TestHas(t *testing.T) {
	// IPV4_DEVCONF_FORWARDING is 1, and first.
	with := told(t, map[int]uint32{0: 1, 25: 1}, map[int]uint32{3: 2, 26: 1, 27: 1<<32 - 1})
	without := told(t, nil, nil)
	for name, test := range map[string]struct {
		link Link
		s    Sysctl
		want bool
	}{
		"IPv4, the first":         {with, Sysctl{Path: "net/ipv4/conf/eth0/forwarding", Value: "1"}, true},
		"IPv4":                    {with, Sysctl{Path: "net/ipv4/conf/eth0/route_localnet", Value: "1"}, true},
		"IPv4, another value":     {with, Sysctl{Path: "net/ipv4/conf/eth0/arp_notify", Value: "1"}, false},
		"IPv6, the first":         {with, Sysctl{Path: "net/ipv6/conf/eth0/forwarding", Value: "0"}, true},
		"IPv6":                    {with, Sysctl{Path: "net/ipv6/conf/eth0/accept_ra", Value: "2"}, true},
		"IPv6, another value":     {with, Sysctl{Path: "net/ipv6/conf/eth0/disable_ipv6", Value: "0"}, false},
		"a negative one":          {with, Sysctl{Path: "net/ipv6/conf/eth0/accept_dad", Value: "-1"}, true},
		"one the kernel has not":  {with, Sysctl{Path: "net/ipv6/conf/eth0/keep_addr_on_down", Value: "0", Optional: true}, false},
		"one without a number":    {with, Sysctl{Path: "net/ipv6/conf/eth0/none", Value: "0"}, false},
		"another interface":       {with, Sysctl{Path: "net/ipv6/conf/eth1/accept_ra", Value: "2"}, false},
		"all interfaces":          {with, Sysctl{Path: "net/ipv6/conf/all/accept_ra", Value: "2"}, false},
		"no setting of one":       {with, Sysctl{Path: "net/ipv4/ip_forward", Value: "1"}, false},
		"no IPv6, and none asked": {without, Sysctl{Path: "net/ipv6/conf/eth0/accept_ra", Value: "0", Optional: true}, true},
		"no IPv6, but asked":      {without, Sysctl{Path: "net/ipv6/conf/eth0/disable_ipv6", Value: "0"}, false},
		"the kernel says nothing": {Link{Name: "eth0"}, Sysctl{Path: "net/ipv6/conf/eth0/accept_ra", Value: "0", Optional: true}, false},
	} {
		expect.Same(t, name, test.link.Has(test.s), test.want)
	}
}

func TestSettingsThatAreTruncated(t *testing.T) {
	for what, spec := range map[string][]byte{"": {40, 0, unix.AF_INET, 0}, "nested": {8, 0, unix.AF_INET6, 0, 9, 0, 2, 0}} {
		var bad error
		new(Settings).parse(attributes{bad: &bad}.within(spec))
		expect.That(t, errors.Is(bad, errTruncated), "%s: got %v", what, bad)
	}
}

// TestNumbersAreTheKernels writes each file of this kernel in turn and compares
// netlink's value.
func TestNumbersAreTheKernels(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	for path, value := range map[string]string{
		"net/ipv4/conf/br0/forwarding": "1", "net/ipv4/conf/br0/arp_notify": "1", "net/ipv4/conf/br0/route_localnet": "1",
		"net/ipv6/conf/br0/forwarding": "1", "net/ipv6/conf/br0/accept_ra": "2", "net/ipv6/conf/br0/disable_ipv6": "1",
		"net/ipv6/conf/br0/accept_dad": "2", "net/ipv6/conf/br0/ndisc_notify": "1",
		"net/ipv6/conf/br0/keep_addr_on_down": "1", "net/ipv6/conf/br0/enhanced_dad": "0",
	} {
		s := Sysctl{Path: path, Value: value}
		expect.That(t, !must[Link](t)(c.Link("br0")).Has(s), "%s is %s before it is set", path, value)
		expect.NoError(t, ns.Do(func() error { return writeSysctls([]Sysctl{s}) }))
		expect.That(t, must[Link](t)(c.Link("br0")).Has(s), "%s is not %s once it is set", path, value)
	}
}

func TestSet4(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	for _, name := range []string{"arp_notify", "route_localnet"} {
		expect.NoError(t, c.Set4(br.Index, name, 1))
		var got []byte
		err := ns.Do(func() (err error) { got, err = os.ReadFile("/proc/sys/net/ipv4/conf/br0/" + name); return err })
		expect.That(t, err == nil && string(got) == "1\n", "%s is %q, %v", name, got, err)
	}
	err := c.Set4(br.Index, "none", 1)
	expect.That(t, err != nil && strings.HasPrefix(err.Error(), "set none of interface "), "got %v", err)
}

func TestForwarding(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	for _, v6 := range []bool{false, true} {
		for _, want := range []bool{false, true} {
			if want {
				expect.NoError(t, c.SetSysctls(ns, Forward(v6)))
			}
			expect.Same(t, fmt.Sprint("forwarding, IPv6 ", v6), c.Forwarding(v6), want)
		}
	}
}

// TestErrorsNameTheRequest: and the socket still works afterwards.
func TestErrorsNameTheRequest(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	p := netip.MustParsePrefix("10.1.0.1/24")
	expect.NoError(t, c.AddAddress(br.Index, p, false), c.AddAddress(br.Index, p, false, unix.EEXIST))
	err := c.AddRoute(br.Index, Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.8.0.1")}, false)
	want := "add route 10.9.0.0/16 via 10.8.0.1: network is unreachable"
	expect.That(t, err != nil && strings.HasPrefix(err.Error(), want) && errors.Is(err, unix.ENETUNREACH), "got %v, want %s", err, want)
	expect.Same(t, "addresses", must[[]Address](t)(c.Addresses(br.Index)), []Address{{Prefix: p}})
}

func TestInterfaceTo(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	expect.NoError(t, c.Change(br.Index, Change{Set: unix.IFF_UP}))
	expect.NoError(t, c.AddAddress(br.Index, netip.MustParsePrefix("10.1.0.1/24"), false))
	expect.Same(t, "index", must[int](t)(c.InterfaceTo(netip.MustParseAddr("10.1.0.9"))), br.Index)
	expect.Same(t, "index without a route", must[int](t)(c.InterfaceTo(netip.MustParseAddr("10.9.0.9"))), 0)
}
