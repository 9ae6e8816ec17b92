package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netconf"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// full has every field.
func full() netconf.Network {
	return netconf.Network{
		Name: "apps", Version: "1.1.0", DisableCheck: true, DisableGC: true, Extra: map[string]any{"zLabels": map[string]string{"b": "2", "a": "1"}, "aID": 7},
		Plugins: []netconf.Plugin{
			netconf.Raw(`{"type": "loopback", "b": 1, "a": {"y": 1, "x": 2}}`),
			netconf.Bridge{
				Name: "apps0", Gateway: true, ForceAddress: true, Masquerade: true, Hairpin: true, MTU: 1400,
				Extra: map[string]any{"vlan": 12, "dns": types.DNS{Nameservers: []string{"10.1.0.53"}, Domain: "example", Search: []string{"a.example"}, Options: []string{"ndots:2"}}},
				IPAM: netconf.HostLocal{
					Ranges: []netconf.Range{
						{Subnet: prefix("10.1.0.0/16"), First: addr("10.1.2.0"), Last: addr("10.1.2.255"), Gateway: addr("10.1.0.9")},
						{Subnet: prefix("fd00:1::/64")},
					},
					DefaultRoutes: true, Routes: []netconf.Route{{Dst: prefix("192.168.0.0/16"), Via: addr("10.1.0.7")}},
					DataDir: "/run/cni", Extra: map[string]any{"note": "x", "resolvConf": "/etc/resolv.conf"},
				},
			},
			netconf.Firewall{Backend: "iptables", AdminChain: "APPS-ADMIN", IngressPolicy: "same-bridge"},
			netconf.PortMap{Extra: map[string]any{"masqAll": true, "backend": "nftables"}},
			netconf.Bandwidth{Extra: map[string]any{"egressRate": 9007199254740993, "egressBurst": 80}},
			netconf.Tuning{Extra: map[string]any{"sysctl": map[string]string{"net.core.somaxconn": "512", "net/ipv4/conf/IFNAME/arp_notify": "1"}, "promisc": true}},
		},
	}
}

const fullJSON = `{
  "cniVersion": "1.1.0",
  "name": "apps",
  "disableCheck": true,
  "disableGC": true,
  "plugins": [
    {"type": "loopback", "b": 1, "a": {"y": 1, "x": 2}},
    {"type": "bridge", "bridge": "apps0", "isGateway": true, "forceAddress": true, "hairpinMode": true,
      "ipMasq": true, "mtu": 1400,
      "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.2.0", "rangeEnd": "10.1.2.255", "gateway": "10.1.0.9"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "192.168.0.0/16", "gw": "10.1.0.7"}],
        "dataDir": "/run/cni", "note": "x", "resolvConf": "/etc/resolv.conf"},
      "capabilities": {"ipRanges": true, "ips": true, "mac": true}, "dns": {"nameservers": ["10.1.0.53"], "domain": "example", "search": ["a.example"], "options": ["ndots:2"]}, "vlan": 12},
    {"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "APPS-ADMIN", "ingressPolicy": "same-bridge"},
    {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "masqAll": true},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}, "egressBurst": 80, "egressRate": 9007199254740993},
    {"type": "tuning", "capabilities": {"mac": true}, "promisc": true, "sysctl": {"net.core.somaxconn": "512", "net/ipv4/conf/IFNAME/arp_notify": "1"}}
  ],
  "aID": 7,
  "zLabels": {"a": "1", "b": "2"}
}`

// TestRender: each field is rendered, in an order that does not change.
func TestRender(t *testing.T) {
	got := string(expect.Value(full().Render())(t))
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), "") }
	expect.Same(t, "rendered", squeeze(got), squeeze(fullJSON))
	for range 20 {
		expect.Same(t, "again", string(expect.Value(full().Render())(t)), got)
	}
	small := netconf.Network{Name: "n", Plugins: []netconf.Plugin{netconf.PTP{IPAM: netconf.RawIPAM(`{"type": "dhcp"}`)}}}
	expect.Same(t, "the least", string(expect.Value(small.Render())(t)), `{
  "cniVersion": "1.0.0",
  "name": "n",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "dhcp"
      }
    }
  ]
}
`)
}

// TestCapabilities: a plugin declares what it and its IPAM plugin read, unless Extra does.
func TestCapabilities(t *testing.T) {
	local := netconf.HostLocal{Ranges: []netconf.Range{{Subnet: prefix("10.1.0.0/16")}}}
	for want, p := range map[string]netconf.Plugin{
		`map[mac:true]`:                        netconf.Bridge{Name: "b0"},
		`map[ipRanges:true ips:true mac:true]`: netconf.Bridge{Name: "b0", IPAM: local},
		`map[ipRanges:true ips:true]`:          netconf.PTP{IPAM: local},
		`map[ips:true]`:                        netconf.PTP{IPAM: netconf.RawIPAM(`{"type": "static"}`)},
		`<nil>`:                                netconf.PTP{IPAM: netconf.RawIPAM(`{"type": "dhcp"}`)},
		`map[dns:true ips:false]`:              netconf.PTP{IPAM: local, Extra: map[string]any{"capabilities": map[string]bool{"ips": false, "dns": true}}},
		`map[mac:true portMappings:true]`:      netconf.Raw(`{"type": "x", "capabilities": {"mac": true, "portMappings": true}}`),
	} {
		n := netconf.Network{Name: "n", Plugins: []netconf.Plugin{p}}
		var list struct{ Plugins []map[string]any }
		expect.NoError(t, json.Unmarshal(expect.Value(n.Render())(t), &list))
		expect.Same(t, "capabilities", fmt.Sprint(list.Plugins[0]["capabilities"]), want)
	}
}

// TestInvalid: what a plugin or a runtime would refuse is refused here, with the field's
// name.
func TestInvalid(t *testing.T) {
	local := func(r ...netconf.Range) netconf.HostLocal { return netconf.HostLocal{Ranges: r} }
	v4 := local(netconf.Range{Subnet: prefix("10.1.0.0/16")})
	v6 := local(netconf.Range{Subnet: prefix("fd00::/64")})
	bridge := func(change func(b *netconf.Bridge)) []netconf.Plugin {
		b := netconf.Bridge{Name: "b0", IPAM: v4}
		change(&b)
		return []netconf.Plugin{b}
	}
	ranges := func(r ...netconf.Range) []netconf.Plugin {
		return bridge(func(b *netconf.Bridge) { b.IPAM = local(r...) })
	}
	routes := func(r ...netconf.Route) []netconf.Plugin {
		return bridge(func(b *netconf.Bridge) { b.IPAM = netconf.HostLocal{Ranges: v4.Ranges, Routes: r} })
	}
	behind := func(p netconf.Plugin) []netconf.Plugin { return []netconf.Plugin{netconf.Bridge{Name: "b0"}, p} }
	for field, plugins := range map[string][]netconf.Plugin{
		"no Plugins":               {},
		"is nil":                   {nil},
		"none before it makes one": {netconf.PortMap{}, netconf.Bridge{Name: "b0"}},
		"one before it does too":   {netconf.Bridge{Name: "b0"}, netconf.PTP{IPAM: v4}},
		"Name is missing":          bridge(func(b *netconf.Bridge) { b.Name = "" }),
		"15 characters":            bridge(func(b *netconf.Bridge) { b.Name = "abcdefghijklmnop" }),
		"refuses or changes":       bridge(func(b *netconf.Bridge) { b.Name = "b%d" }),
		`"a/b", which`:             bridge(func(b *netconf.Bridge) { b.Name = "a/b" }),
		`".", which`:               bridge(func(b *netconf.Bridge) { b.Name = "." }),
		"default routes of HostLocal": bridge(func(b *netconf.Bridge) {
			b.DefaultGateway, b.IPAM = true, netconf.HostLocal{Ranges: v6.Ranges, Routes: []netconf.Route{{Dst: prefix("::/0")}}}
		}),
		"MTU is 67":              bridge(func(b *netconf.Bridge) { b.MTU = 67 }),
		"MTU is 1279":            bridge(func(b *netconf.Bridge) { b.MTU, b.IPAM = 1279, v6 }),
		"MTU is -5":              bridge(func(b *netconf.Bridge) { b.MTU = -5 }),
		`Extra sets "bridge"`:    bridge(func(b *netconf.Bridge) { b.Extra = map[string]any{"bridge": "c0"} }),
		"unsupported type":       bridge(func(b *netconf.Bridge) { b.Extra = map[string]any{"x": make(chan int)} }),
		"IPAM is missing":        {netconf.PTP{}},
		"Ranges is empty":        ranges(),
		"Subnet is missing":      ranges(netconf.Range{}),
		"has not been chosen":    ranges(netconf.AnyIPv4()),
		"host bits":              ranges(netconf.Range{Subnet: prefix("10.1.2.3/16")}),
		"too small":              ranges(netconf.Range{Subnet: prefix("10.1.2.2/31")}),
		"in the form of IPv6":    ranges(netconf.Range{Subnet: prefix("::ffff:10.1.0.0/112")}),
		"First 10.2.0.1":         ranges(netconf.Range{Subnet: prefix("10.1.0.0/16"), First: addr("10.2.0.1")}),
		"Last fd00::1":           ranges(netconf.Range{Subnet: prefix("10.1.0.0/16"), Last: addr("fd00::1")}),
		"Gateway 10.2.0.1":       ranges(netconf.Range{Subnet: prefix("10.1.0.0/16"), Gateway: addr("10.2.0.1")}),
		"is behind Last":         ranges(netconf.Range{Subnet: prefix("10.1.0.0/16"), First: addr("10.1.0.9"), Last: addr("10.1.0.8")}),
		"ranges 0 and 1 overlap": ranges(netconf.Range{Subnet: prefix("10.1.0.0/16")}, netconf.Range{Subnet: prefix("10.1.3.0/24")}),
		"is no network":          routes(netconf.Route{Dst: prefix("10.1.2.3/8")}),
		"not of its family":      routes(netconf.Route{Dst: prefix("10.0.0.0/8"), Via: addr("fd00::1")}),
		"DataDir":                bridge(func(b *netconf.Bridge) { b.IPAM = netconf.HostLocal{Ranges: v4.Ranges, DataDir: "run/cni"} }),
		`Backend is "x"`:         behind(netconf.Firewall{Backend: "x"}),
		"AdminChain":             behind(netconf.Firewall{AdminChain: "TWO WORDS"}),
		"name of a chain":        behind(netconf.Firewall{AdminChain: strings.Repeat("X", 29)}),
		"IngressPolicy":          behind(netconf.Firewall{IngressPolicy: "closed"}),
		"needs a Bridge":         {netconf.PTP{IPAM: v4}, netconf.Firewall{IngressPolicy: "isolated"}},
		"no JSON object":         {netconf.Raw(`[]`)},
		"Raw":                    {netconf.Raw(`{"type": "x"`)},
		"at line 2, column 3":    {netconf.Raw("{\"type\":\n  x}")},
		"behind its object":      {netconf.Raw(`{"type": "x"} {}`)},
		"missing 'type'":         {netconf.Raw(`{}`)},
		"not a file name":        {netconf.Raw(`{"type": "../x"}`)},
		"ipam.type":              bridge(func(b *netconf.Bridge) { b.IPAM = netconf.RawIPAM(`{"type": "a/b"}`) }),
	} {
		_, err := netconf.Network{Name: "net", Plugins: plugins}.Render()
		if !errors.Is(err, netconf.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, want one with %q", err, field)
		}
	}
	for field, n := range map[string]netconf.Network{
		"missing network name": {Plugins: bridge(func(*netconf.Bridge) {})},
		"invalid characters":   {Name: "a b", Plugins: bridge(func(*netconf.Bridge) {})},
		"Version is":           {Name: "a", Version: "0.3.1", Plugins: bridge(func(*netconf.Bridge) {})},
		`Extra sets "name"`:    {Name: "a", Plugins: bridge(func(*netconf.Bridge) {}), Extra: map[string]any{"name": "b"}},
	} {
		_, err := n.Render()
		if !errors.Is(err, netconf.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, want one with %q", err, field)
		}
	}
}

// effect parses a configuration and removes the differences between two spellings of one
// meaning: host-local's subnet beside its ranges, and values that are the default.
func effect(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var list map[string]any
	expect.NoError(t, json.Unmarshal(data, &list))
	for _, p := range list["plugins"].([]any) {
		plugin := p.(map[string]any)
		for _, key := range []string{"hairpinMode", "forceAddress"} {
			if plugin[key] == false {
				delete(plugin, key)
			}
		}
		if plugin["snat"] == true {
			delete(plugin, "snat")
		}
		if ipam, ok := plugin["ipam"].(map[string]any); ok && ipam["subnet"] != nil {
			first := map[string]any{}
			for _, key := range []string{"subnet", "gateway", "rangeStart", "rangeEnd"} {
				if ipam[key] != nil {
					first[key] = ipam[key]
				}
				delete(ipam, key)
			}
			more, _ := ipam["ranges"].([]any)
			ipam["ranges"] = append([]any{[]any{first}}, more...)
		}
	}
	return list
}

// TestNetworksThatRuntimesWrite: the default networks of four runtimes, by what they
// contain.
func TestNetworksThatRuntimesWrite(t *testing.T) {
	for name, test := range map[string]struct {
		network netconf.Network
		want    string
	}{
		"a bridge of functions, as faasd's": {
			netconf.Network{Name: "openfaas-cni-bridge", Version: "0.4.0", Plugins: []netconf.Plugin{
				netconf.Bridge{Name: "openfaas0", Gateway: true, Masquerade: true, IPAM: netconf.HostLocal{
					Ranges: []netconf.Range{{Subnet: prefix("10.62.0.0/16")}}, DefaultRoutes: true, DataDir: "/var/run/cni",
				}},
				netconf.Firewall{},
			}},
			`{"cniVersion": "0.4.0", "name": "openfaas-cni-bridge", "plugins": [
				{"type": "bridge", "bridge": "openfaas0", "capabilities": {"ips": true, "ipRanges": true, "mac": true}, "isGateway": true, "ipMasq": true,
				 "ipam": {"type": "host-local", "subnet": "10.62.0.0/16", "dataDir": "/var/run/cni", "routes": [{"dst": "0.0.0.0/0"}]}},
				{"type": "firewall"}]}`,
		},
		"a bridge with labels, as nerdctl's": {
			netconf.Network{
				Name: "bridge", Extra: map[string]any{"nerdctlID": "17f2", "nerdctlLabels": map[string]string{"nerdctl/default-network": "true"}},
				Plugins: []netconf.Plugin{
					netconf.Bridge{Name: "nerdctl0", Gateway: true, Masquerade: true, Hairpin: true, IPAM: netconf.HostLocal{
						Ranges: []netconf.Range{{Subnet: prefix("10.4.0.0/24"), Gateway: addr("10.4.0.1")}}, DefaultRoutes: true,
					}},
					netconf.PortMap{}, netconf.Firewall{IngressPolicy: "same-bridge"}, netconf.Tuning{},
				},
			},
			`{"cniVersion": "1.0.0", "name": "bridge", "nerdctlID": "17f2", "nerdctlLabels": {"nerdctl/default-network": "true"}, "plugins": [
				{"type": "bridge", "bridge": "nerdctl0", "capabilities": {"ips": true, "ipRanges": true, "mac": true}, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				 "ipam": {"ranges": [[{"gateway": "10.4.0.1", "subnet": "10.4.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "type": "host-local"}},
				{"type": "portmap", "capabilities": {"portMappings": true}},
				{"type": "firewall", "ingressPolicy": "same-bridge"},
				{"type": "tuning", "capabilities": {"mac": true}}]}`,
		},
		"a bridge with an admin chain and loopback, as Nomad's": {
			netconf.Network{Name: "nomad", Plugins: []netconf.Plugin{
				netconf.Raw(`{"type": "loopback"}`),
				netconf.Bridge{Name: "nomad", Gateway: true, ForceAddress: true, Masquerade: true, IPAM: netconf.HostLocal{
					Ranges: []netconf.Range{{Subnet: prefix("172.26.64.0/20")}, {Subnet: prefix("fd00:a110:c8::/120")}}, DefaultRoutes: true,
				}},
				netconf.Firewall{Backend: "iptables", AdminChain: "NOMAD-ADMIN"},
				netconf.PortMap{},
			}},
			`{"cniVersion": "1.0.0", "name": "nomad", "plugins": [
				{"type": "loopback"},
				{"type": "bridge", "bridge": "nomad", "capabilities": {"ips": true, "ipRanges": true, "mac": true}, "ipMasq": true, "isGateway": true, "forceAddress": true, "hairpinMode": false,
				 "ipam": {"type": "host-local", "ranges": [[{"subnet": "172.26.64.0/20"}], [{"subnet": "fd00:a110:c8::/120"}]],
				  "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
				{"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},
				{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}`,
		},
		"a bridge of pods, as Podman's": {
			netconf.Network{Name: "podman", Version: "0.4.0", Plugins: []netconf.Plugin{
				netconf.Bridge{Name: "cni-podman0", Gateway: true, Masquerade: true, Hairpin: true, IPAM: netconf.HostLocal{
					Ranges: []netconf.Range{{Subnet: prefix("10.88.0.0/16"), Gateway: addr("10.88.0.1")}}, DefaultRoutes: true,
				}},
				netconf.PortMap{}, netconf.Firewall{}, netconf.Tuning{},
			}},
			`{"cniVersion": "0.4.0", "name": "podman", "plugins": [
				{"type": "bridge", "bridge": "cni-podman0", "capabilities": {"ips": true, "ipRanges": true, "mac": true}, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				 "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]]}},
				{"type": "portmap", "capabilities": {"portMappings": true}},
				{"type": "firewall"},
				{"type": "tuning", "capabilities": {"mac": true}}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := effect(t, expect.Value(test.network.Render())(t)), effect(t, []byte(test.want))
			expect.Same(t, "subnets", got, want)
		})
	}
}
