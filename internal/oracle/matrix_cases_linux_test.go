package oracle

import (
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
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

// difference is an intended difference from go-cni, as a line in the
// description of a container's life.
type difference struct {
	cases  string // expression for name/version
	ours   string // expression for lines of this library only
	theirs string // expression for lines of go-cni only
	why    string
}

func differences() []difference {
	const noOptions = "Remove gets no port mappings here: go-cni then calls portmap without, which deletes nothing, " +
		"and returns nil; this library gives plugins those of the Setup (F6)"
	return []difference{
		{"(bridge IPv4|everything)/(0.4.0|1.*)", "check passes", "check is not supported",
			"go-cni's loopback is of version 0.3.1, which has no CHECK, so that its Check always fails (R34)"},
		{".*", `made link cni0 type bridge mtu \d+ up alias embedcni`, `made link cni0 type bridge mtu \d+ up`,
			"the bridge of an executable's ADD is marked, so that a repair can tell it from the host's (F65)"},
		{"(portmap iptables|everything)/.*", "",
			`left ip6?tables(-nft|-legacy)? nat -[AN] CNI-(DN-\w+|HOSTPORT-DNAT)( .*)?`, noOptions},
		{"portmap nftables/.*", "",
			`left nft rule ip6? cni_hostport (hostports|hostip_hostports|masquerading) .* comment "c1"`, noOptions},
	}
}

// seenDifferences records the listed differences that occurred, because one
// that no longer occurs must not stay listed.
type seenDifferences struct {
	mu       sync.Mutex
	seen     map[int]bool
	compared int
}

// unlisted returns the lines without a listed reason.
func (s *seenDifferences) unlisted(name string, ours, theirs audit.Lines) (audit.Lines, audit.Lines) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compared++
	for i, d := range differences() {
		if !matches(d.cases, name) {
			continue
		}
		restOurs := ours.Without(func(l string) bool { return matches(d.ours, l) })
		restTheirs := theirs.Without(func(l string) bool { return matches(d.theirs, l) })
		if len(restOurs) < len(ours) || len(restTheirs) < len(theirs) {
			if s.seen == nil {
				s.seen = make(map[int]bool)
			}
			s.seen[i] = true
		}
		ours, theirs = restOurs, restTheirs
	}
	return ours, theirs
}

func matches(expr, text string) bool {
	return expr != "" && regexp.MustCompile("^(?:"+expr+")$").MatchString(text)
}

func (s *seenDifferences) wantAll(t *testing.T) {
	t.Helper()
	for i, d := range differences() {
		expect.That(t, s.seen[i], "listed, but not seen: %+v", d)
	}
}
