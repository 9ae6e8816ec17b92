package cni

import (
	"encoding/json"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
)

// raw parses a plugin's result of version 1.1.0.
func raw(t testing.TB, text string) *types100.Result {
	t.Helper()
	var r types100.Result
	expect.NoError(t, json.Unmarshal([]byte(text), &r))
	return &r
}

// resultOf converts results of networks n0, n1, … on interfaces eth0, eth1,
// ….
func resultOf(t testing.TB, texts ...string) *Result {
	t.Helper()
	var sources []engine.Source
	for i, text := range texts {
		sources = append(sources, engine.Source{Network: ifName("n", i), IfName: ifName("eth", i), Result: raw(t, text)})
	}
	return expect.Value(newResult(sources, "eth0"))(t)
}

func prefix(s string) Address { return Address{Prefix: netip.MustParsePrefix(s)} }

func via(s, gateway string) Address {
	return Address{Prefix: netip.MustParsePrefix(s), Gateway: netip.MustParseAddr(gateway)}
}

// show renders a value for comparison and for reading. netip values print well,
// and pointers are followed.
func show(t testing.TB, v any) string {
	t.Helper()
	return string(expect.Value(json.MarshalIndent(v, "", " "))(t))
}

func wantShown(t *testing.T, name string, got, want any) {
	t.Helper()
	expect.Same(t, name, show(t, got), show(t, want))
}

const (
	bridgeResult = `{"interfaces": [{"name": "cni0", "mac": "m0"}, {"name": "veth1", "mac": "m1"}, {"name": "eth0", "mac": "m2", "sandbox": "/ns", "mtu": 1400, "pciID": "p", "socketPath": "s"}],
		"ips": [{"interface": 2, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"interface": 2, "address": "2001:db8::3/64"}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1300, "advmss": 1200, "priority": 7, "table": 5, "scope": 1}], "dns": {"nameservers": ["1.1.1.1"], "domain": "d"}}`
	loopbackResult = `{"interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "::1/128"}]}`
)

func TestResultKeepsEverythingOfANetwork(t *testing.T) {
	five, one := 5, 1
	want := &NetworkResult{
		Name: "n0", IfName: "eth0",
		Interfaces: []*Interface{
			{Name: "cni0", Network: "n0", Mac: "m0"},
			{Name: "veth1", Network: "n0", Mac: "m1"},
			{Name: "eth0", Network: "n0", Sandbox: "/ns", Mac: "m2", MTU: 1400, PciID: "p", SocketPath: "s",
				Addresses: []Address{via("10.1.2.3/24", "10.1.2.1"), prefix("2001:db8::3/64")}},
		},
		Routes: []*types.Route{{Dst: mask("0.0.0.0/0"), GW: net.ParseIP("10.1.2.1"), MTU: 1300, AdvMSS: 1200, Priority: 7, Table: &five, Scope: &one}},
		DNS:    types.DNS{Nameservers: []string{"1.1.1.1"}, Domain: "d"},
	}
	r := resultOf(t, bridgeResult)
	wantShown(t, "networks", r.Networks, []*NetworkResult{want})
	wantShown(t, "interfaces", r.Interfaces, map[string]*Config{
		"cni0": {Mac: "m0"}, "veth1": {Mac: "m1"},
		"eth0": {Mac: "m2", Sandbox: "/ns", PciID: "p", SocketPath: "s", IPConfigs: []*IPConfig{
			{IP: net.ParseIP("10.1.2.3"), Gateway: net.ParseIP("10.1.2.1")}, {IP: net.ParseIP("2001:db8::3")}}},
	})
	wantShown(t, "routes", r.Routes, want.Routes)
	wantShown(t, "DNS", r.DNS, []types.DNS{want.DNS})
	expect.That(t, len(r.Raw()) == 1 && r.Raw()[0].Interfaces[2].Mtu == 1400, "raw %+v", r.Raw())
}

func mask(s string) net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return *n
}

// TestAddressesWithoutAnInterface belong to the requested interface, as in
// results before CNI 0.3.0. In the map that is the default's, as in go-cni.
func TestAddressesWithoutAnInterface(t *testing.T) {
	address := []Address{prefix("10.0.0.2/24")}
	for name, test := range map[string]struct {
		text string
		want []*Interface
	}{
		"none reported": {`{"ips": [{"address": "10.0.0.2/24"}]}`, []*Interface{{Name: "eth0", Network: "n0", Addresses: address}}},
		"reported": {
			`{"interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/ns"}], "ips": [{"address": "10.0.0.2/24"}]}`,
			[]*Interface{{Name: "cni0", Network: "n0"}, {Name: "eth0", Network: "n0", Sandbox: "/ns", Addresses: address}},
		},
		"reported on both sides": {
			`{"interfaces": [{"name": "eth0"}, {"name": "eth0", "sandbox": "/ns"}], "ips": [{"address": "10.0.0.2/24"}]}`,
			[]*Interface{{Name: "eth0", Network: "n0"}, {Name: "eth0", Network: "n0", Sandbox: "/ns", Addresses: address}},
		},
		"others reported": {
			`{"interfaces": [{"name": "net1", "sandbox": "/ns"}], "ips": [{"address": "10.0.0.2/24"}]}`,
			[]*Interface{{Name: "net1", Network: "n0", Sandbox: "/ns"}, {Name: "eth0", Network: "n0", Addresses: address}},
		},
	} {
		r := resultOf(t, test.text)
		wantShown(t, name, r.Networks[0].Interfaces, test.want)
		ips := r.Interfaces["eth0"].IPConfigs
		expect.That(t, len(ips) == 1 && ips[0].IP.String() == "10.0.0.2", "%s: the map has %s", name, show(t, r.Interfaces))
	}
}

// TestFault_F19_InterfacesOfOneName, on two networks, on the host and in the
// container, are neither lost nor confused.
func TestFault_F19_InterfacesOfOneName(t *testing.T) {
	r := resultOf(t,
		`{"interfaces": [{"name": "eth0", "mac": "a", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "10.1.0.2/24"}]}`,
		`{"interfaces": [{"name": "eth0", "mac": "b", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "10.2.0.2/24"}]}`)
	wantShown(t, "two networks", []*Interface{r.Networks[0].Interfaces[0], r.Networks[1].Interfaces[0]}, []*Interface{
		{Name: "eth0", Network: "n0", Sandbox: "/ns", Mac: "a", Addresses: []Address{prefix("10.1.0.2/24")}},
		{Name: "eth0", Network: "n1", Sandbox: "/ns", Mac: "b", Addresses: []Address{prefix("10.2.0.2/24")}},
	})
	wantShown(t, "two networks, map", r.Interfaces, map[string]*Config{"eth0": {Mac: "a", Sandbox: "/ns",
		IPConfigs: []*IPConfig{{IP: net.ParseIP("10.1.0.2")}, {IP: net.ParseIP("10.2.0.2")}}}})
	for name, text := range map[string]string{
		"host first": `{"interfaces": [{"name": "eth0", "mac": "h"}, {"name": "eth0", "mac": "c", "sandbox": "/ns"}],
			"ips": [{"interface": 0, "address": "192.0.2.1/24"}, {"interface": 1, "address": "10.1.0.2/24"}]}`,
		"container first": `{"interfaces": [{"name": "eth0", "mac": "c", "sandbox": "/ns"}, {"name": "eth0", "mac": "h"}],
			"ips": [{"interface": 1, "address": "192.0.2.1/24"}, {"interface": 0, "address": "10.1.0.2/24"}]}`,
	} {
		r := resultOf(t, text)
		wantShown(t, name+", map", r.Interfaces, map[string]*Config{"eth0": {Mac: "c", Sandbox: "/ns", IPConfigs: []*IPConfig{{IP: net.ParseIP("10.1.0.2")}}}})
		for _, i := range r.Networks[0].Interfaces {
			want := map[string]string{"h": "192.0.2.1/24", "c": "10.1.0.2/24"}[i.Mac]
			expect.That(t, len(i.Addresses) == 1 && i.Addresses[0].Prefix.String() == want, "%s: %s has %v, want %s", name, i.Mac, i.Addresses, want)
		}
		got := r.Primary()
		expect.That(t, got != nil && got.Mac == "c", "%s: primary is %+v, want the container's", name, got)
	}
}

// TestPrimaryAddress is the rule that schedulers write by hand.
func TestPrimaryAddress(t *testing.T) {
	const (
		none   = `{"interfaces": [{"name": "eth1", "sandbox": "/ns"}]}`
		six    = `{"interfaces": [{"name": "eth1", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "2001:db8::9/64"}]}`
		host   = `{"interfaces": [{"name": "a", "mac": "host"}], "ips": [{"interface": 0, "address": "192.0.2.9/24"}]}`
		before = `{"interfaces": [{"name": "an0", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "10.9.9.9/16"}]}`
		mapped = `{"interfaces": [{"name": "eth0", "sandbox": "/ns"}], "ips": [{"interface": 0, "address": "::ffff:10.0.0.5/120"}]}`
	)
	tests := map[string]struct {
		results             []string
		primary, four, six6 string
	}{
		"nothing":                     {nil, "", "", ""},
		"no addresses":                {[]string{none}, "", "", ""},
		"bridge":                      {[]string{bridgeResult}, "eth0", "10.1.2.3/24", "2001:db8::3/64"},
		"loopback alone":              {[]string{loopbackResult}, "", "", ""},
		"loopback sorts last":         {[]string{bridgeResult, loopbackResult}, "eth0", "10.1.2.3/24", "2001:db8::3/64"},
		"loopback sorts first":        {[]string{loopbackResult, strings.ReplaceAll(bridgeResult, `"eth0"`, `"net0"`)}, "net0", "10.1.2.3/24", "2001:db8::3/64"},
		"IPv6 only":                   {[]string{six}, "eth1", "", "2001:db8::9/64"},
		"IPv6 first, IPv4 elsewhere":  {[]string{six, strings.ReplaceAll(before, "an0", "eth2")}, "eth1", "10.9.9.9/16", "2001:db8::9/64"},
		"first by name, not by order": {[]string{bridgeResult, before}, "an0", "10.9.9.9/16", "2001:db8::3/64"},
		"network without addresses":   {[]string{none, before}, "an0", "10.9.9.9/16", ""},
		"container before host":       {[]string{host, bridgeResult}, "eth0", "10.1.2.3/24", "2001:db8::3/64"},
		"host if there is no other":   {[]string{host, none}, "a", "192.0.2.9/24", ""},
		"version 0.2.0":               {[]string{`{"ips": [{"address": "10.0.0.2/24"}]}`}, "eth0", "10.0.0.2/24", ""},
		"IPv4 mapped":                 {[]string{mapped}, "eth0", "10.0.0.5/24", ""},
	}
	shown := func(a Address) string {
		if !a.IsValid() {
			return ""
		}
		return a.Prefix.String()
	}
	for name, test := range tests {
		r := resultOf(t, test.results...)
		primary := ""
		if p := r.Primary(); p != nil {
			primary = p.Name
		}
		got := [3]string{primary, shown(r.IPv4()), shown(r.IPv6())}
		want := [3]string{test.primary, test.four, test.six6}
		expect.That(t, got == want, "%s: %q, want %q", name, got, want)
		a := r.IPv4()
		expect.That(t, !a.IsValid() || a.IP() == a.Prefix.Addr(), "%s: IP %v of %v", name, a.IP(), a.Prefix)
	}
}

func TestResultThatCannotBeWalked(t *testing.T) {
	index := func(i int) *types100.IPConfig {
		return &types100.IPConfig{Interface: types100.Int(i), Address: mask("10.0.0.0/8")}
	}
	for want, r := range map[string]*types100.Result{
		"there is no result": nil,
		"interface 1 is null": {
			Interfaces: []*types100.Interface{{}, nil},
		},
		"route 0 is null": {Routes: []*types.Route{nil}},
		"invalid IP configuration: address 0 is null":              {IPs: []*types100.IPConfig{nil}},
		"invalid IP configuration: address 0 is of interface 0 of": {IPs: []*types100.IPConfig{index(0)}},
		"address 0 is of interface 1 of 1":                         {Interfaces: []*types100.Interface{{}}, IPs: []*types100.IPConfig{index(1)}},
		"address 0 is of interface -1 of 1":                        {Interfaces: []*types100.Interface{{}}, IPs: []*types100.IPConfig{index(-1)}},
	} {
		got, err := newResult([]engine.Source{{Network: "net", IfName: "eth0", Result: r}}, "eth0")
		expect.That(t, got == nil && IsInvalidResult(err) && strings.Contains(err.Error(), `network "net": `) && strings.Contains(err.Error(), want),
			"got %v, %v; want ErrInvalidResult with %q", got, err, want)
	}
}

func TestMergedDNS(t *testing.T) {
	r := resultOf(t,
		`{"dns": {"nameservers": ["1.1.1.1", "8.8.8.8"], "search": ["a"], "options": ["x"]}}`, `{}`,
		`{"dns": {"nameservers": ["8.8.8.8", "9.9.9.9"], "domain": "first", "search": ["b", "a"]}}`,
		`{"dns": {"domain": "second", "options": ["x", "y"]}}`)
	want := types.DNS{Nameservers: []string{"1.1.1.1", "8.8.8.8", "9.9.9.9"}, Domain: "first", Search: []string{"a", "b"}, Options: []string{"x", "y"}}
	expect.Same(t, "MergedDNS", r.MergedDNS(), want)
	expect.That(t, r.DNS[0].Nameservers[1] == "8.8.8.8" && len(r.DNS) == 4 && len(r.DNS[0].Nameservers) == 2, "merging changed %+v", r.DNS)
}

// TestResultComesBackFromJSON except for the raw results.
func TestResultComesBackFromJSON(t *testing.T) {
	for name, r := range map[string]*Result{
		"usual": resultOf(t, loopbackResult, bridgeResult), "empty": resultOf(t), "no gateway": resultOf(t, `{"ips": [{"address": "10.0.0.2/24"}]}`),
	} {
		data := expect.Value(json.Marshal(r))(t)
		var back Result
		err := json.Unmarshal(data, &back)
		expect.Must(t, err == nil, "%s: %v: %s", name, err, data)
		wantShown(t, name, back, r)
		expect.That(t, reflect.DeepEqual(back.Primary(), r.Primary()) && back.IPv6() == r.IPv6() && back.Raw() == nil,
			"%s: primary %+v, was %+v", name, back.Primary(), r.Primary())
	}
}

// TestResultThatGoCNIWrote: a daemon that has just been migrated reads its
// earlier results. The map must suffice.
func TestResultThatGoCNIWrote(t *testing.T) {
	const persisted = `{"Interfaces":{"cni0":{"IPConfigs":null,"Mac":"m0","Sandbox":"","PciID":"","SocketPath":""},
		"eth0":{"IPConfigs":[{"IP":"2001:db8::3","Gateway":""},{"IP":"10.1.2.3","Gateway":"10.1.2.1"}],"Mac":"m2","Sandbox":"/ns"},
		"lo":{"IPConfigs":[{"IP":"127.0.0.1","Gateway":""}],"Sandbox":"/ns"}},"DNS":[{}],"Routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1"}]}`
	var r Result
	expect.NoError(t, json.Unmarshal([]byte(persisted), &r))
	wantShown(t, "primary", r.Primary(), &Interface{Name: "eth0", Sandbox: "/ns", Mac: "m2",
		Addresses: []Address{prefix("2001:db8::3/128"), via("10.1.2.3/32", "10.1.2.1")}})
	expect.Same(t, "IPv4", r.IPv4(), via("10.1.2.3/32", "10.1.2.1"))
}

func TestAddressOfAnyShape(t *testing.T) {
	four, six := net.ParseIP("10.0.0.2"), net.ParseIP("2001:db8::2")
	for name, test := range map[string]struct {
		ip   net.IPNet
		want string
	}{
		"IPv4":                       {net.IPNet{IP: four.To4(), Mask: net.CIDRMask(24, 32)}, "10.0.0.2/24"},
		"IPv4 of 16 bytes":           {net.IPNet{IP: four, Mask: net.CIDRMask(24, 32)}, "10.0.0.2/24"},
		"IPv4, mask of 16 bytes":     {net.IPNet{IP: four, Mask: net.CIDRMask(120, 128)}, "10.0.0.2/24"},
		"IPv4, mask shorter than 96": {net.IPNet{IP: four, Mask: net.CIDRMask(64, 128)}, "::ffff:10.0.0.2/64"},
		"IPv6":                       {net.IPNet{IP: six, Mask: net.CIDRMask(64, 128)}, "2001:db8::2/64"},
		"IPv6, mask of 4 bytes":      {net.IPNet{IP: six, Mask: net.CIDRMask(24, 32)}, "2001:db8::2/128"},
		"no mask":                    {net.IPNet{IP: four}, "10.0.0.2/32"},
		"mask with a hole":           {net.IPNet{IP: six, Mask: net.IPMask(net.ParseIP("ff00:ff::"))}, "2001:db8::2/128"},
		"no address":                 {net.IPNet{}, "invalid Prefix"},
	} {
		expect.Same(t, name, engine.NewAddress(test.ip, nil).Prefix.String(), test.want)
	}
}

// TestAnAddressThatTwoNetworksReportIsInTheMapOnce, like those of lo. Networks
// and Raw have it as often as it was reported.
func TestAnAddressThatTwoNetworksReportIsInTheMapOnce(t *testing.T) {
	other := strings.Replace(loopbackResult, `"127.0.0.1/8"`, `"127.0.0.1/8", "gateway": "127.0.0.9"`, 1)
	r := resultOf(t, loopbackResult, bridgeResult, loopbackResult, other)
	wantShown(t, "lo", r.Interfaces["lo"].IPConfigs, []*IPConfig{
		{IP: net.ParseIP("127.0.0.1")}, {IP: net.ParseIP("::1")}, {IP: net.ParseIP("127.0.0.1"), Gateway: net.ParseIP("127.0.0.9")},
	})
	wantShown(t, "eth0", len(r.Interfaces["eth0"].IPConfigs), 2)
	for _, i := range []int{0, 2, 3} {
		wantShown(t, "addresses in order", len(r.Networks[i].Interfaces[0].Addresses), 2)
		wantShown(t, "raw addresses", len(r.Raw()[i].IPs), 2)
	}
}
