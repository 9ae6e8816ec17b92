package oracle

import (
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/testhost"
)

const staticBoth = `"ipam": {"type": "static",
	"addresses": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}, {"address": "fd77::9/64", "gateway": "fd77::1"}],
	"routes": [{"dst": "198.51.100.0/24"}, {"dst": "192.0.2.0/24", "gw": "10.77.0.254"}, {"dst": "2001:db8::/32"}],
	"dns": {"nameservers": ["10.77.0.1"], "domain": "pod.example", "search": ["example"], "options": ["ndots:2"]}}`

var specVersions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// another are the cases of plugins that other cases try in every version.
var another = []string{"bridge IPv4", "bridge IPv6", "bridge static", "ptp IPv4", "ptp IPv6",
	"portmap nftables", "bridge nftables masquerade", "firewall same-bridge", "everything"}

// versions returns the case's versions: a list of plugins needs 0.3.0, which introduced
// prevResult. Cases of one plugin differ in the first and the last if they differ at all.
func versions(c *testhost.Case) []string {
	versions := slices.DeleteFunc(slices.Clone(specVersions), func(v string) bool {
		return v < c.Since || v < "0.3.0" && len(c.Plugins) > 1
	})
	if slices.Contains(another, c.Name) {
		return []string{versions[0], versions[len(versions)-1]}
	}
	return versions
}

func realCases() []testhost.Case {
	bridge := testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))
	bridgeBoth := testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range))
	ports := []cni.PortMapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 8081, ContainerPort: 81, Protocol: "udp", HostIP: "192.0.2.1"},
	}
	rate := cni.BandWidth{IngressRate: 8e6, IngressBurst: 8e6, EgressRate: 4e6, EgressBurst: 4e6}
	return append(singleCases(), []testhost.Case{
		{Name: "tuning", Plugins: []string{bridge,
			`{"type": "tuning", "mac": "0a:58:0a:4d:00:02", "mtu": 1400, "dataDir": "IPAM",
			  "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}}`}},
		{Name: "bandwidth", Plugins: []string{bridge,
			`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}, Bandwidth: rate},
		{Name: "portmap iptables", Plugins: []string{bridgeBoth,
			`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`}, Ports: ports},
		{Name: "portmap nftables", Plugins: []string{bridgeBoth,
			`{"type": "portmap", "backend": "nftables", "snat": true, "capabilities": {"portMappings": true}}`}, Ports: ports},
		{Name: "bridge nftables masquerade", Plugins: []string{
			testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range))}},
		{Name: "firewall", Since: "0.4.0", Plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables"}`}},
		{Name: "firewall same-bridge", Since: "0.4.0", Plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`}},
		{Name: "everything", Since: "0.4.0", Lo: true, Plugins: []string{bridgeBoth,
			`{"type": "firewall", "backend": "iptables"}`,
			`{"type": "tuning", "mtu": 1400, "dataDir": "IPAM"}`,
			`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`,
			`{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`},
			Ports: ports, Bandwidth: rate},
	}...)
}

// singleCases have one plugin, so they work as a file of a version before
// 0.3.0.
func singleCases() []testhost.Case {
	return []testhost.Case{
		{Name: "loopback", Plugins: []string{`{"type": "loopback"}`}},
		{Name: "bridge IPv4", Lo: true, Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}},
		{Name: "bridge IPv6", Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V6Range))}},
		{Name: "bridge both", Plugins: []string{testhost.BridgeConf(`"ipMasq": true, "hairpinMode": true, "mtu": 1450, ` +
			testhost.HostLocal(testhost.V4Range+","+testhost.V6Range))}},
		{Name: "bridge static", Plugins: []string{testhost.BridgeConf(staticBoth)}},
		{Name: "ptp IPv4", Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V4Range, "0.0.0.0/0"))},
			Routes: []string{"10.77.0.1/32", "10.77.0.0/24 via 10.77.0.1"}},
		{Name: "ptp IPv6", Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V6Range, "::/0"))},
			Routes: []string{"fd77::1/128", "fd77::/64 via fd77::1"}},
		{Name: "ptp both", Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V4Range+","+testhost.V6Range, "0.0.0.0/0", "::/0"))},
			Routes: []string{"10.77.0.1/32", "10.77.0.0/24 via 10.77.0.1", "fd77::1/128", "fd77::/64 via fd77::1"}},
		{Name: "macvlan", Plugins: []string{`{"type": "macvlan", "master": "up0", ` +
			testhost.HostLocal(testhost.V4Range+","+testhost.V6Range, "0.0.0.0/0") + `}`}, Prepare: testhost.Uplink},
		{Name: "host-device", Plugins: []string{`{"type": "host-device", "device": "up0", ` + staticBoth + `}`},
			Prepare: func(h *testhost.RealHost) { h.VethPair("up0", "up1"); h.LinkUp("up1") }},
	}
}
