package links

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// told returns a link as the kernel describes it, with some settings of each
// family.
func told(t *testing.T, v4, v6 map[int]uint32) Link {
	t.Helper()
	m := newMessage(unix.RTM_NEWLINK, 0, ifinfo(7, 0, 0))
	m.str(unix.IFLA_IFNAME, "eth0")
	array := func(size int, values map[int]uint32) []byte {
		b := make([]byte, 4*size)
		for i, v := range values {
			native.PutUint32(b[4*i:], v)
		}
		return b
	}
	m.nest(unix.IFLA_AF_SPEC, func() {
		m.nest(unix.AF_INET, func() { m.attr(unix.IFLA_INET_CONF, array(33, v4)) })
		if v6 != nil {
			m.nest(unix.AF_INET6, func() {
				m.u32(unix.IFLA_INET6_FLAGS, 5)
				m.attr(unix.IFLA_INET6_CONF, array(30, v6)) // from an old kernel
			})
		}
	})
	l, err := parseLink(m.b[unix.NLMSG_HDRLEN:])
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestHas(t *testing.T) {
	// IPV4_DEVCONF_FORWARDING is 1, and first.
	with := told(t, map[int]uint32{0: 1, 25: 1}, map[int]uint32{3: 2, 26: 1, 27: 1<<32 - 1})
	without := told(t, nil, nil)
	tests := map[string]struct {
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
	}
	for name, test := range tests {
		if got := test.link.Has(test.s); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestSettingsThatAreTruncated(t *testing.T) {
	var s Settings
	if err := s.parse([]byte{40, 0, unix.AF_INET, 0}); !errors.Is(err, errTruncated) {
		t.Errorf("got %v", err)
	}
	if err := s.parse([]byte{8, 0, unix.AF_INET6, 0, 9, 0, 2, 0}); !errors.Is(err, errTruncated) {
		t.Errorf("nested: got %v", err)
	}
}

func TestSet4Encodes(t *testing.T) {
	r := (&Conn{}).Requests()
	r.Set4(7, "arp_notify", 1)
	want := newMessage(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(7, 0, 0))
	for _, v := range []uint16{20, unix.IFLA_AF_SPEC, 16, unix.AF_INET, 12, unix.IFLA_INET_CONF, 8, 22} {
		want.b = native.AppendUint16(want.b, v)
	}
	want.b = native.AppendUint32(want.b, 1)
	if got := r.all[0].m.b; !reflect.DeepEqual(got, want.b) {
		t.Errorf("got  %v\nwant %v", got, want.b)
	}
}

// TestNumbersAreTheKernels writes each file of this kernel in turn and compares
// netlink's value.
func TestNumbersAreTheKernels(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	must[Link](t)(Bridge{Name: "br0"}.Create(c))
	values := map[string]string{
		"net/ipv4/conf/br0/forwarding": "1", "net/ipv4/conf/br0/arp_notify": "1", "net/ipv4/conf/br0/route_localnet": "1",
		"net/ipv6/conf/br0/forwarding": "1", "net/ipv6/conf/br0/accept_ra": "2", "net/ipv6/conf/br0/disable_ipv6": "1",
		"net/ipv6/conf/br0/accept_dad": "2", "net/ipv6/conf/br0/ndisc_notify": "1",
		"net/ipv6/conf/br0/keep_addr_on_down": "1", "net/ipv6/conf/br0/enhanced_dad": "0",
	}
	for path, value := range values {
		s := Sysctl{Path: path, Value: value}
		if l := must[Link](t)(c.Link("br0")); l.Has(s) {
			t.Errorf("%s is %s before it is set", path, value)
		}
		if err := ns.Do(func() error { return writeSysctls([]Sysctl{s}) }); err != nil {
			t.Fatal(err)
		}
		if l := must[Link](t)(c.Link("br0")); !l.Has(s) {
			t.Errorf("%s is not %s once it is set", path, value)
		}
	}
}

func TestSet4(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	for _, name := range []string{"arp_notify", "route_localnet"} {
		r := c.Requests()
		r.Set4(br.Index, name, 1)
		if err := r.Send(); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := ns.Do(func() (err error) { got, err = readSysctl("/proc/sys/net/ipv4/conf/br0/" + name); return err }); err != nil || got != "1" {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	r := c.Requests()
	r.Set4(br.Index, "none", 1)
	if err := r.Send(); err == nil || !strings.HasPrefix(err.Error(), "set none of interface ") {
		t.Errorf("got %v", err)
	}
}

func TestForwarding(t *testing.T) {
	ns := newNS(t, "ns")
	c := mustDial(t, ns)
	for _, v6 := range []bool{false, true} {
		for _, want := range []bool{false, true} {
			if want {
				if err := setSysctls(c, ns, Forward(v6)); err != nil {
					t.Fatal(err)
				}
			}
			r := c.Requests()
			got := r.Forwarding(v6)
			if err := r.Send(); err != nil || *got != want {
				t.Errorf("IPv6 %t: got %t, %v, want %t", v6, *got, err, want)
			}
		}
	}
}

// TestRequestsNameTheFailure: the kernel continues after a failure, the error
// names it, and later answers are read.
func TestRequestsNameTheFailure(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	p, q := netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.2.0.1/24")
	r := c.Requests()
	r.AddAddress(br.Index, p, 0)
	r.AddAddress(br.Index, p, 0, unix.EEXIST)
	before := r.LinkByIndex(br.Index)
	r.AddRoute(br.Index, Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), Via: netip.MustParseAddr("10.8.0.1")}, false)
	r.AddRoute(99, Route{Dst: netip.MustParsePrefix("10.7.0.0/16")}, false)
	r.AddAddress(br.Index, q, 0)
	all := r.Addresses(br.Index)
	after := r.Link("br0")
	err := r.Send()
	if want := "add route 10.9.0.0/16 via 10.8.0.1: network is unreachable"; err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("got %v, want %s", err, want)
	}
	if before.Name != "br0" || after.Name != "" {
		t.Errorf("got %q before the failure, %q in the request that is not sent after it", before.Name, after.Name)
	}
	if want := []Address{{Prefix: p}, {Prefix: q}}; !reflect.DeepEqual(*all, want) {
		t.Errorf("got %v, want %v", *all, want)
	}
	// The socket still works afterwards, and nothing is sent twice.
	if err := r.Send(); err != nil {
		t.Error(err)
	}
	must[Link](t)(c.LinkByIndex(br.Index))
}

func TestRequestsThatAreMany(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	r := c.Requests()
	const n = 3*mostTogether + 1
	var read []*Link
	for i := range n {
		r.AddAddress(br.Index, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), 32), 0)
		read = append(read, r.LinkByIndex(br.Index))
	}
	if err := r.Send(); err != nil {
		t.Fatal(err)
	}
	for i, l := range read {
		if l.Name != "br0" {
			t.Fatalf("answer %d is %+v", i, l)
		}
	}
	if all := must[[]Address](t)(c.Addresses(br.Index)); len(all) != n {
		t.Errorf("got %d addresses, want %d", len(all), n)
	}
}

func TestInterfaceTo(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	if err := c.Change(br.Index, Change{Set: unix.IFF_UP}); err != nil {
		t.Fatal(err)
	}
	if err := c.AddAddress(br.Index, netip.MustParsePrefix("10.1.0.1/24"), 0); err != nil {
		t.Fatal(err)
	}
	if got := must[int](t)(c.InterfaceTo(netip.MustParseAddr("10.1.0.9"))); got != br.Index {
		t.Errorf("got %d, want %d", got, br.Index)
	}
	if _, err := c.InterfaceTo(netip.MustParseAddr("10.9.0.9")); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("got %v", err)
	}
}
