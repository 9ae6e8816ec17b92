package damage

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// The backends of packet filters. Executables choose iptables if none is named.
const (
	unnamed  = ""
	iptables = "iptables"
	nftables = "nftables"
)

// form is a kind of attachment.
type form struct {
	typ     string // of the first plugin
	backend string
	ours    bool   // built-in plugins attach; else executables
	legacy  bool   // the host's iptables is the legacy one
	policy  string // of the bridge, against packets from others; empty: none
	zoned   bool   // firewalld accepts the packets
	flannel bool   // the first plugin is flannel's delegate
}

func (f form) String() string {
	by := "executables"
	if f.ours {
		by = "built-in"
	}
	backend := f.backend
	if backend == unnamed {
		backend = "unnamed"
	}
	name := f.typ + "/" + backend + "/" + by
	if f.zoned {
		name += "/firewalld"
	}
	if f.policy != "" {
		name += "/" + f.policy
	}
	if f.flannel {
		name += "/flannel"
	}
	return name
}

// native reports whether the rules are in this module's own sets.
func (f form) native() bool { return f.ours }

// tables reports whether masquerading and forwarded ports are rules of iptables.
func (f form) tables() bool { return !f.ours && f.backend != nftables }

// bridged and routed: the container has a veth pair, with rules on the host.
func (f form) bridged() bool { return f.typ == "bridge" }
func (f form) routed() bool  { return f.typ == "ptp" }
func (f form) paired() bool  { return f.bridged() || f.routed() }

// plugins returns the configurations of the chain.
func (f form) plugins() []string {
	masquerade, backend := `"ipMasq": true, `, ""
	if f.backend != unnamed {
		masquerade += fmt.Sprintf(`"ipMasqBackend": %q, `, f.backend)
		backend = fmt.Sprintf(`"backend": %q, `, f.backend)
	}
	both := testhost.HostLocal(testhost.V4Range+","+testhost.V6Range, "0.0.0.0/0", "::/0")
	behind := []string{
		`{"type": "portmap", ` + backend + `"snat": true, "capabilities": {"portMappings": true}}`,
		`{"type": "tuning", "dataDir": "IPAM", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`,
		`{"type": "bandwidth", "ingressRate": 800000000, "ingressBurst": 800000000, "egressRate": 800000000, "egressBurst": 800000000}`,
	}
	policy := ""
	if f.policy != "" {
		policy = fmt.Sprintf(`, "ingressPolicy": %q`, f.policy)
	}
	switch {
	case f.zoned:
		behind = append(behind, `{"type": "firewall", "backend": "firewalld"`+policy+`}`)
	case f.tables():
		behind = append(behind, `{"type": "firewall", "backend": "iptables"`+policy+`}`)
	case f.native():
		behind = append(behind, `{"type": "firewall"`+policy+`}`)
	}
	if f.flannel {
		return append([]string{`{"type": "flannel", "subnetFile": "IPAM/subnet.env", "dataDir": "IPAM/flannel",
			"ipam": {"dataDir": "IPAM", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
			"delegate": {"bridge": "cni0", "hairpinMode": true, "macspoofchk": true}}`}, behind...)
	}
	switch f.typ {
	case "bridge":
		return append([]string{`{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "macspoofchk": true, ` + masquerade + both + `}`}, behind...)
	case "ptp":
		return append([]string{`{"type": "ptp", ` + masquerade + both + `}`}, behind...)
	case "macvlan":
		return []string{`{"type": "macvlan", "master": "up0", ` + both + `}`}
	case "host-device":
		return []string{`{"type": "host-device", "device": "up0", ` + both + `}`}
	}
	return []string{`{"type": "loopback"}`}
}

// scene is a host with two containers that are attached in one form. Other programs
// have a rule, a route and, with a bridge, a port of it.
type scene struct {
	*testhost.RealHost
	form
	rt    *cni.Runtime
	world string // the path of the namespace beyond the host
	one   *guest
	other *guest

	zones *firewalldtest.Server // of a form with zones
}

// guest is an attached container with connections.
type guest struct {
	id, path string
	end      string // of its veth pair on the host
	v4, v6   string
	ways     []way
	flows    []flow
}

func newScene(t *testing.T, f form) *scene {
	t.Helper()
	s := &scene{RealHost: testhost.NewReal(t), form: f}
	s.ProbeIPv6()
	if f.zoned {
		host := expect.Value(netns.Open("/proc/thread-self/ns/net"))(t)
		t.Cleanup(func() { expect.NoError(t, host.Close()) })
		s.zones = firewalldtest.Start(t, host)
		expect.NoError(t, s.useZones())
		t.Setenv(firewalld.Variable, s.zones.Address)
	}
	if f.flannel {
		expect.NoError(t, os.MkdirAll(s.Path("ipam"), 0o755), os.WriteFile(s.Path("ipam", "subnet.env"), []byte(lease), 0o644))
	}
	conf := cni.WithConfListBytes((&testhost.Case{Plugins: f.plugins()}).Conf("podnet", "1.0.0", s.Path("ipam")))
	if f.ours {
		s.rt = s.Runtime(cni.WithBuiltinPlugins(), conf)
	} else {
		s.rt = s.Real(conf)
	}
	switch {
	case f.paired():
		s.world = s.Outside()
		s.Serve(s.world, 7)
		s.one, s.other = s.attach("c1", 8080), s.attach("c2", 8081)
		s.strange()
	case f.typ == "loopback":
		s.one = s.attach("c1", 0)
	default:
		s.lan()
		s.one = s.attach("c1", 0)
	}
	return s
}

// lease is flanneld's file for the scene's subnets.
const lease = "FLANNEL_NETWORK=10.77.0.0/16\nFLANNEL_SUBNET=10.77.0.1/24\nFLANNEL_IPV6_NETWORK=fd77::/56\nFLANNEL_IPV6_SUBNET=fd77::1/64\n" +
	"FLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n"

// useZones adds an administrator's sources to zones, for the time until a reload.
func (s *scene) useZones() error {
	s.zones.AddSource(firewalld.DefaultZone, "198.51.100.0/24")
	s.zones.AddSource("drop", "203.0.113.0/24")
	return nil
}

// lan has a cable to a namespace with the gateway's addresses.
func (s *scene) lan() {
	s.T.Helper()
	s.world = s.Container("outside")
	s.VethPair("up0", "up1")
	s.MoveLink("up1", s.world)
	s.LinkUp("up0")
	s.Configure(s.world, "up1", "10.77.0.1/24", "fd77::1/64")
	s.Serve(s.world, 7)
}

// attach attaches a container, and opens its connections: from the world to its port of
// the host, and to the world.
func (s *scene) attach(id string, port int32) *guest {
	s.T.Helper()
	g := &guest{id: id, path: s.Container(id)}
	var opts []cni.NamespaceOpts
	if port != 0 {
		opts = append(opts, cni.WithCapabilityPortMap([]cni.PortMapping{
			{HostPort: port, ContainerPort: 80, Protocol: "tcp"}, {HostPort: port, ContainerPort: 80, Protocol: "udp"}}))
	}
	result := expect.Value(s.rt.Setup(context.Background(), id, g.path, opts...))(s.T)
	s.Serve(g.path, 80)
	switch {
	case s.paired():
		for _, i := range result.Raw()[0].Interfaces {
			if strings.HasPrefix(i.Name, "veth") {
				g.end = i.Name
			}
		}
		g.ways = []way{{s.world, testhost.HostPort("192.0.2.1", int(port))}, {s.world, testhost.HostPort("2001:db8::1", int(port))},
			{g.path, testhost.HostPort("192.0.2.2", 7)}, {g.path, testhost.HostPort("2001:db8::2", 7)}}
	case s.typ == "loopback":
		g.ways = []way{{g.path, testhost.HostPort("127.0.0.1", 80)}, {g.path, testhost.HostPort("::1", 80)}}
	default:
		g.ways = []way{{g.path, testhost.HostPort("10.77.0.1", 7)}, {g.path, testhost.HostPort("fd77::1", 7)}}
	}
	if s.typ != "loopback" {
		g.v4, g.v6 = result.IPv4().IP().String(), result.IPv6().IP().String()
	}
	g.flows = open(s.RealHost, g.ways)
	return g
}

// strange adds things of other programs, which nothing may remove.
func (s *scene) strange() {
	s.T.Helper()
	s.VethPair("admin0", "admin1")
	s.Configure("", "admin0", "198.51.100.1/24")
	if s.bridged() {
		s.VethPair("vm0", "vm1")
		expect.NoError(s.T, s.plug("vm0"))
	}
}

// plug makes an interface a port of the bridge.
func (s *scene) plug(name string) error {
	bridge, err := netlink.LinkByName("cni0")
	if err != nil {
		return err
	}
	return nettest.OnLink(name, func(link netlink.Link) error { return netlink.LinkSetMaster(link, bridge) })
}

// look lists everything on the host and in the containers that matters, without the
// records, which note more with each repair.
func (s *scene) look() audit.Lines {
	s.T.Helper()
	lines := s.Audit().Without(func(l string) bool {
		// The kernel's route to an address of the host itself leads nowhere else.
		if !s.ours && audit.IsRule(l) {
			return true // a repair puts what it did into this module's form
		}
		own := s.routed() && strings.HasPrefix(l, "route fd77::1/128 ") && strings.Contains(l, " proto kernel ")
		return own || strings.Contains(l, s.Path("state"))
	})
	for _, g := range []*guest{s.one, s.other} {
		if g == nil {
			continue
		}
		s.Inside(g.path, func() error {
			inside, err := audit.Snapshot(context.Background(), audit.Options{WithoutProcess: true})
			for _, l := range inside {
				lines = append(lines, g.id+": "+l)
			}
			return err
		})
		lines = append(lines, g.id+": "+s.sysctl(g))
	}
	slices.Sort(lines)
	return lines
}

// sysctl returns a setting of the container, with the index of its interface, which
// stays the same for as long as it is the same.
func (s *scene) sysctl(g *guest) (line string) {
	s.T.Helper()
	name := "eth0"
	if s.typ == "loopback" {
		name = "lo"
	}
	s.Inside(g.path, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			line = err.Error()
			return nil
		}
		value, err := readSysctl("net/ipv4/conf/" + name + "/arp_filter")
		line = fmt.Sprintf("%s index %d %s arp_filter %s", name, link.Attrs().Index, link.Attrs().HardwareAddr, value)
		return err
	})
	return line
}

// way is a way of packets: from the namespace at path, or the host, to a server.
type way struct{ from, address string }

// flow is a connection that lives as long as the test.
type flow struct {
	*plugintest.Flow
	name string
}

// open opens a connection over each of the ways, with TCP and UDP.
func open(h *testhost.RealHost, ways []way) []flow {
	h.T.Helper()
	var all []flow
	for _, w := range ways {
		from, err := netns.Current()
		if w.from != "" {
			expect.NoError(h.T, errors.Join(err, from.Close()))
			from, err = netns.Open(w.from)
		}
		expect.NoError(h.T, err)
		for _, network := range []string{"tcp", "udp"} {
			all = append(all, flow{plugintest.NewFlow(h.T, from, network, netip.MustParseAddrPort(w.address)),
				fmt.Sprintf("the %s connection from %q to %s", network, w.from, w.address)})
		}
		expect.NoError(h.T, from.Close())
	}
	return all
}

// wantFlowing checks that each connection is answered.
func wantFlowing(t testing.TB, all []flow) {
	t.Helper()
	for _, f := range all {
		expect.Succeeds(t, f.name, f.Answer(testhost.AnswerWait))
	}
}

// init reserves the leading thread for TestMain. A test on it that changed its network
// namespace would change the process's.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m, sandbox.Shards(2))) }
