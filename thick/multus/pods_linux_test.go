package multus

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/multinet"
)

// site is the surroundings of a pod, the same for every daemon: the default network and the
// network of a cable, whose other end is in the namespace lan with the address 192.168.1.1.
type site struct {
	ipam    string // the directory of host-local's reservations
	primary string // the file of the default network
	lan     *netns.Handle
}

// gateways answer on port 80 with the address of the client: two bridges of the sandbox, and
// the end of the cable.
var gateways = []string{"10.244.1.1", "10.88.2.1", "192.168.1.1"}

func newSite(t *testing.T) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{ipam: filepath.Join(dir, "ipam"), primary: filepath.Join(dir, "10-default.conflist"), lan: nettest.At(t, filepath.Join(dir, "lan"))}
	expect.NoError(t, os.WriteFile(s.primary, fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "cbr0", "plugins": [
		{"type": "bridge", "bridge": "mtest0", "isDefaultGateway": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.244.1.0/24"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, s.ipam), 0o600))
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "mtestup"}, PeerName: "lan0", PeerNamespace: netlink.NsFd(s.lan.File().Fd())}
	expect.NoError(t, netlink.LinkAdd(cable), netlink.LinkSetUp(cable))
	t.Cleanup(func() { removeLinks(t) })
	nettest.AddAddress(t, s.lan, "lan0", "192.168.1.1/24")
	nettest.SetUp(t, s.lan, "lo", "lan0")
	host := &testhost.RealHost{Host: &testhost.Host{T: t}}
	host.Serve("", 80)
	host.Serve(filepath.Join(dir, "lan"), 80)
	return s
}

// macvlan is the network of Multus' quickstart.
func (s *site) macvlan() string {
	return fmt.Sprintf(`{"cniVersion": "0.3.0", "type": "macvlan", "master": "mtestup", "mode": "bridge",
		"ipam": {"type": "host-local", "dataDir": %q, "subnet": "192.168.1.0/24", "rangeStart": "192.168.1.200", "rangeEnd": "192.168.1.216",
			"routes": [{"dst": "0.0.0.0/0"}], "gateway": "192.168.1.1"}}`, s.ipam)
}

// reserved returns host-local's reservations.
func (s *site) reserved(t *testing.T) (all []string) {
	t.Helper()
	files := expect.Value(filepath.Glob(filepath.Join(s.ipam, "*", "*.*.*.*")))(t)
	for _, file := range files {
		if name := expect.Value(filepath.Rel(s.ipam, file))(t); !strings.Contains(name, "last_reserved") {
			all = append(all, name)
		}
	}
	return all
}

// removeLinks removes the networks' interfaces from the sandbox.
func removeLinks(t *testing.T) {
	t.Helper()
	for _, link := range expect.Value(netlink.LinkList())(t) {
		if strings.HasPrefix(link.Attrs().Name, "mtest") {
			expect.NoError(t, netlink.LinkDel(link))
		}
	}
}

// stack is a shim in front of a daemon.
type stack struct {
	name  string
	shim  string // the variable that names the program
	start func(t *testing.T, c *cluster, s *site)
}

func startMultus(t *testing.T, c *cluster, s *site) {
	programs := map[string]string{}
	for _, typ := range []string{conflist.Bridge, conflist.HostLocal, conflist.MACVLAN, conflist.Portmap} {
		programs[typ] = filepath.Join(references(t), typ)
	}
	startDaemon(t, c, s.primary, programs)
}

func startOurDaemon(t *testing.T, c *cluster, s *site) {
	startOurs(t, c.options(), s.primary, references(t))
}

// stacks are the ones that are compared with Multus' own, which is the first.
var stacks = []stack{
	{"Multus", shimVar, startMultus},
	{"Multus' shim before our daemon", shimVar, startOurDaemon},
	{"our shim before our daemon", oursVar, startOurDaemon},
}

// observed is a pod as it is seen from outside: a value for each property.
type observed map[string]string

// observe attaches a pod, looks at it, checks it and detaches it.
func (k stack) observe(t *testing.T, annotation string) observed {
	t.Helper()
	ns := newPod(t)
	// Two of its interfaces are in one network: each answers for its own address.
	expect.NoError(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0o600) }))
	s, c := newSite(t), newCluster(t)
	c.addPod(object{multinet.Annotation: annotation})
	c.addNetwork(podNamespace, "macvlan-conf", s.macvlan(), "")
	c.addNetwork("other", "bridge-conf", network(t, 2), "")
	k.start(t, c, s)
	run := func(verb string) []byte {
		stdout, stderr, err := podCall(verb).run(t, os.Getenv(k.shim))
		if err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		expect.Same(t, "standard error of "+verb, stderr, "")
		return stdout
	}
	seen := observed{}
	result := run("ADD")
	same := s.normalize(t, ns)
	seen.describe(t, same(string(result)), same(c.networkStatus(t)))
	inspect(t, ns, seen)
	seen["reserved"] = strings.Join(s.reserved(t), " ")
	for device, address := range addresses(t, ns) {
		seen["traffic of "+device] = ask(t, ns, device, address)
	}
	run("CHECK")
	run("DEL")
	expect.Same(t, "addresses after DEL", addresses(t, ns), map[string]string{})
	seen["reserved after DEL"] = strings.Join(s.reserved(t), " ")
	run("DEL")
	return seen
}

// describe adds the fields of the result and of the network status.
func (o observed) describe(t *testing.T, result, status string) {
	t.Helper()
	var fields object
	exactly(t, []byte(result), &fields)
	for key, value := range fields {
		o["result "+key] = rendered(t, value)
	}
	var interfaces []object
	exactly(t, []byte(status), &interfaces)
	for _, one := range interfaces {
		o["status"] += fmt.Sprintf("%v ", one["interface"])
		for key, value := range one {
			o[fmt.Sprintf("status of %v: %s", one["interface"], key)] = rendered(t, value)
		}
	}
}

// normalize returns a function that replaces random values of the kernel and of plugins by
// the names of their owners.
func (s *site) normalize(t *testing.T, pod *netns.Handle) func(string) string {
	t.Helper()
	var pairs []string
	host := expect.Value(netlink.LinkList())(t)
	for _, link := range host {
		if link.Type() == "veth" && link.Attrs().Name != "mtestup" {
			pairs = append(pairs, link.Attrs().Name, "(host's end)")
		}
	}
	nettest.Inside(t, pod, func(nl *netlink.Handle) error {
		links, err := nl.LinkList()
		for _, link := range append(links, host...) {
			if mac := link.Attrs().HardwareAddr.String(); mac != "" && link.Attrs().Name != "lo" {
				name := link.Attrs().Name
				if slices.Contains(pairs, name) {
					name = "(host's end)"
				}
				pairs = append(pairs, mac, "(MAC of "+name+")")
			}
		}
		return err
	})
	return strings.NewReplacer(pairs...).Replace
}

// inspect looks at the interfaces and routes of a pod.
func inspect(t *testing.T, ns *netns.Handle, seen observed) {
	t.Helper()
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		links, err := nl.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			attrs := link.Attrs()
			if attrs.Name == "lo" {
				continue
			}
			seen["interface "+attrs.Name] = fmt.Sprintf("%s, MTU %d, up %v, %s", link.Type(), attrs.MTU, attrs.RawFlags&syscall.IFF_UP != 0, addresses(t, ns)[attrs.Name])
			routes, err := nl.RouteList(link, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			var lines []string
			for _, r := range routes {
				lines = append(lines, fmt.Sprintf("%v via %v", r.Dst, r.Gw))
			}
			slices.Sort(lines)
			seen["routes of "+attrs.Name] = strings.Join(lines, ", ")
		}
		return nil
	})
}

// ask connects from an interface of a pod to the gateway of its network, and returns the
// client's address as the gateway sees it.
func ask(t *testing.T, ns *netns.Handle, device, address string) (answer string) {
	t.Helper()
	at := slices.IndexFunc(gateways, func(g string) bool { return strings.HasPrefix(address, strings.TrimSuffix(g, "1")) })
	if at < 0 {
		t.Fatalf("no gateway for %s", address)
	}
	dialer := net.Dialer{Timeout: testhost.AnswerWait, Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), device) })
		return errors.Join(err, failed)
	}}
	expect.NoError(t, ns.Do(func() error {
		conn, err := dialer.Dial("tcp", net.JoinHostPort(gateways[at], "80"))
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(testhost.AnswerWait)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		said, err := bufio.NewReader(conn).ReadString('\n')
		answer = strings.TrimSpace(said)
		return err
	}))
	return answer
}

// difference is a field that Multus and this library's daemon have differently.
type difference struct{ theirs, ours, reason string }

// routeWithoutGateway is the gateway in the status of a network whose default route names
// none.
var routeWithoutGateway = difference{`["\u003cnil\u003e"]`, `["192.168.1.1"]`, "the route has the gateway of the addresses (CNI specification 1.1.0, section 5)"}

// keptInResult and keptInPod are the default route of the default network, in a pod that asks
// for the one of another network.
var (
	keptInResult = difference{`[{"dst":"0.0.0.0/0","gw":"10.244.1.1"}]`, "", "Multus reports the routes that the plugins made, whatever it has changed since"}
	keptInPod    = difference{"0.0.0.0/0 via 10.244.1.1, 10.244.1.0/24 via <nil>", "10.244.1.0/24 via <nil>",
		"Multus v4.3.0 does not find default routes: it expects none to have a destination, and netlink v1.3.1 gives it 0.0.0.0/0"}
)

// leaked is the reservation of the default network's address after DEL.
var leaked = difference{"cbr0/10.244.1.2", "", "Multus sends DEL without the fields of the plugins for a network from a file, and its shim prints no error"}

// TestPodsAreAttachedAsByMultus: pods with the annotations of Multus' documentation, through
// each shim to this library's daemon, have the same interfaces, addresses, routes, result and
// network status as from Multus, but for known differences.
func TestPodsAreAttachedAsByMultus(t *testing.T) {
	for name, pod := range map[string]struct {
		annotation string
		differs    map[string]difference
	}{
		"quickstart": {"macvlan-conf,macvlan-conf", map[string]difference{
			"status of net1: gateway": routeWithoutGateway, "status of net2: gateway": routeWithoutGateway,
		}},
		"names": {"macvlan-conf@lan0, other/bridge-conf", map[string]difference{
			"status of lan0: gateway": routeWithoutGateway,
		}},
		"default route": {`[{"name": "macvlan-conf", "default-route": ["192.168.1.7"], "mac": "02:00:00:00:00:07"},
			{"name": "bridge-conf", "namespace": "other", "interface": "net9", "ips": ["10.88.2.77"]}]`, map[string]difference{
			"result routes":           keptInResult,
			"status of eth0: gateway": {`["10.244.1.1"]`, "", keptInResult.reason},
			"status of net1: gateway": {`["\u003cnil\u003e"]`, `["192.168.1.7"]`, keptInResult.reason},
			"routes of eth0":          keptInPod,
			"routes of net1":          {"0.0.0.0/0 via 192.168.1.1, 192.168.1.0/24 via <nil>", "0.0.0.0/0 via 192.168.1.7, 192.168.1.0/24 via <nil>", keptInPod.reason},
		}},
		"own default route": {`[{"name": "macvlan-conf", "default-route": []}]`, map[string]difference{
			"result routes":           keptInResult,
			"status of eth0: gateway": {`["10.244.1.1"]`, "", keptInResult.reason},
			"status of net1: gateway": routeWithoutGateway,
			"routes of eth0":          keptInPod,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod.differs["reserved after DEL"] = leaked
			var theirs observed
			for _, k := range stacks {
				t.Run(k.name, func(t *testing.T) {
					seen := k.observe(t, pod.annotation)
					if theirs == nil {
						theirs = seen
						return
					}
					compare(t, theirs, seen, pod.differs)
				})
			}
		})
	}
}

// compare compares field by field.
func compare(t *testing.T, theirs, ours observed, differs map[string]difference) {
	t.Helper()
	all := maps.Clone(theirs)
	maps.Copy(all, ours)
	for key := range differs {
		all[key] = ""
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		d, differs := differs[key]
		if !differs {
			d = difference{theirs: theirs[key], ours: theirs[key]}
		}
		if theirs[key] != d.theirs || ours[key] != d.ours || differs && d.theirs == d.ours {
			t.Errorf("%s: Multus has %q, this library %q; want %q and %q (%s)", key, theirs[key], ours[key], d.theirs, d.ours, d.reason)
		}
	}
}
