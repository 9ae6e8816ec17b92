package cni_test

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni"
)

// realCase is a network made of reference plugins, in a way that makes sense.
type realCase struct {
	name    string
	since   string   // the lowest version that all its plugins have; empty: 0.1.0
	plugins []string // their configurations, in order
	prepare func(h *realHost)
	lo      bool // load the loopback network as well

	ports     []cni.PortMapping
	bandwidth cni.BandWidth

	// routes are those that a plugin sets up without saying so in its result,
	// and link is the interface where the result does not say it.
	routes []string
	link   contentLink
}

var specVersions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// versions are those of the case: a list of plugins needs 0.3.0, as prevResult
// came with it.
func (c *realCase) versions() []string {
	var versions []string
	for _, v := range specVersions {
		if v >= c.since && (v >= "0.3.0" || len(c.plugins) == 1) {
			versions = append(versions, v)
		}
	}
	return versions
}

// single tells whether the network is one of the days before lists.
func (c *realCase) single(version string) bool { return version < "0.3.0" }

// conf is the configuration file. ipam is the directory of host-local.
func (c *realCase) conf(network, version, ipam string) []byte {
	head := fmt.Sprintf(`{"cniVersion": %q, "name": %q, `, version, network)
	text := head + `"plugins": [` + strings.Join(c.plugins, ",\n") + `]}`
	if c.single(version) {
		text = head + c.plugins[0][1:]
	}
	return []byte(strings.ReplaceAll(text, "IPAM", ipam))
}

const (
	v4Range = `[{"subnet": "10.77.0.0/24"}]`
	v6Range = `[{"subnet": "fd77::/64"}]`
)

func hostLocal(ranges string, routes ...string) string {
	var dst []string
	for _, r := range routes {
		dst = append(dst, fmt.Sprintf(`{"dst": %q}`, r))
	}
	return fmt.Sprintf(`"ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [%s], "routes": [%s]}`,
		ranges, strings.Join(dst, ", "))
}

const staticBoth = `"ipam": {"type": "static",
	"addresses": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}, {"address": "fd77::9/64", "gateway": "fd77::1"}],
	"routes": [{"dst": "198.51.100.0/24"}, {"dst": "192.0.2.0/24", "gw": "10.77.0.254"}, {"dst": "2001:db8::/32"}],
	"dns": {"nameservers": ["10.77.0.1"], "domain": "pod.example", "search": ["example"], "options": ["ndots:2"]}}`

func bridgeConf(more string) string {
	return `{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, ` + more + `}`
}

func ptpConf(more string) string { return `{"type": "ptp", "ipMasq": true, ` + more + `}` }

// uplink is what macvlan sits on.
func uplink(h *realHost) {
	h.vethPair("up0", "up1")
	h.linkUp("up0", "up1")
}

func realCases() []realCase {
	bridge := bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range))
	bridgeBoth := bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range+","+v6Range))
	ports := []cni.PortMapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 8081, ContainerPort: 81, Protocol: "udp", HostIP: "192.0.2.1"},
	}
	rate := cni.BandWidth{IngressRate: 8e6, IngressBurst: 8e6, EgressRate: 4e6, EgressBurst: 4e6}
	return append(singleCases(), []realCase{
		{name: "tuning", plugins: []string{bridge,
			`{"type": "tuning", "mac": "0a:58:0a:4d:00:02", "mtu": 1400, "dataDir": "IPAM",
			  "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}}`}},
		{name: "bandwidth", plugins: []string{bridge,
			`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}, bandwidth: rate},
		{name: "portmap iptables", plugins: []string{bridgeBoth,
			`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`}, ports: ports},
		{name: "portmap nftables", plugins: []string{bridgeBoth,
			`{"type": "portmap", "backend": "nftables", "snat": true, "capabilities": {"portMappings": true}}`}, ports: ports},
		{name: "bridge nftables masquerade", plugins: []string{
			bridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + hostLocal(v4Range+","+v6Range))}},
		{name: "firewall", since: "0.4.0", plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables"}`}},
		{name: "firewall same-bridge", since: "0.4.0", plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`}},
		{name: "everything", since: "0.4.0", lo: true, plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables"}`,
			`{"type": "tuning", "mtu": 1400, "dataDir": "IPAM"}`,
			`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`,
			`{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`},
			ports: ports, bandwidth: rate},
	}...)
}

// singleCases are those of one plugin, which can be a file of before 0.3.0.
func singleCases() []realCase {
	return []realCase{
		{name: "loopback", plugins: []string{`{"type": "loopback"}`},
			// The plugin prints a result of 0.3.0 and calls it one of 0.1.0 or
			// 0.2.0, in which there is nothing then.
			link: contentLink{Name: "lo", Addrs: []string{"127.0.0.1/8", "::1/128"}}},
		{name: "bridge IPv4", lo: true, plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range))}},
		{name: "bridge IPv6", plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(v6Range))}},
		{name: "bridge both", plugins: []string{bridgeConf(`"ipMasq": true, "hairpinMode": true, "mtu": 1450, ` +
			hostLocal(v4Range+","+v6Range))}},
		{name: "bridge static", plugins: []string{bridgeConf(staticBoth)}},
		{name: "ptp IPv4", plugins: []string{ptpConf(hostLocal(v4Range, "0.0.0.0/0"))},
			routes: []string{"10.77.0.1/32", "10.77.0.0/24 via 10.77.0.1"}},
		{name: "ptp IPv6", plugins: []string{ptpConf(hostLocal(v6Range, "::/0"))},
			routes: []string{"fd77::1/128", "fd77::/64 via fd77::1"}},
		{name: "ptp both", plugins: []string{ptpConf(hostLocal(v4Range+","+v6Range, "0.0.0.0/0", "::/0"))},
			routes: []string{"10.77.0.1/32", "10.77.0.0/24 via 10.77.0.1", "fd77::1/128", "fd77::/64 via fd77::1"}},
		{name: "macvlan", plugins: []string{`{"type": "macvlan", "master": "up0", ` +
			hostLocal(v4Range+","+v6Range, "0.0.0.0/0") + `}`}, prepare: uplink},
		{name: "host-device", plugins: []string{`{"type": "host-device", "device": "up0", ` + staticBoth + `}`},
			prepare: func(h *realHost) { h.vethPair("up0", "up1"); h.linkUp("up1") }},
	}
}
