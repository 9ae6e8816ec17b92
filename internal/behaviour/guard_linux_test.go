package behaviour_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// guardContainers is the number of containers that are guarded.
var guardContainers = flag.Int("guard-containers", 4, "how many containers are attached while a guard's host is damaged")

// guardLimit is the time within which traffic must be back. Everyday runs share the
// machine with others.
var guardLimit = flag.Duration("guard-limit", expect.Patience/2, "the time within which traffic must be back after a damage")

// guardedHost is a host with attached containers and guards.
type guardedHost struct {
	*realHost
	t       *testing.T
	r       *cni.Runtime
	opts    []cni.Opt // of r
	outside string
	ids     []string

	mu     sync.Mutex
	events []guard.Event
	wake   chan struct{}
}

// guardConf is a network whose packet filter rules are in one form.
func guardConf(ptp bool, backend string) string {
	first := `"type": "bridge", "bridge": "br0", "isGateway": true, "isDefaultGateway": true, `
	if ptp {
		first = `"type": "ptp", `
	}
	named, masq := "", ""
	if backend != "" {
		named, masq = fmt.Sprintf(`"backend": %q, `, backend), fmt.Sprintf(`"ipMasqBackend": %q, `, backend)
	}
	routes := ""
	if ptp {
		routes = `, "routes": [{"dst": "0.0.0.0/0"}]`
	}
	return `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{` + first + masq + `"ipMasq": true, "ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [[{"subnet": "10.77.0.0/16"}]]` + routes + `}},
		{"type": "portmap", ` + named + `"snat": true, "capabilities": {"portMappings": true}}]}`
}

// newBareHost returns a host with an outside, and without containers.
func newBareHost(t *testing.T) *guardedHost {
	t.Helper()
	h := &guardedHost{realHost: newRealHost(t), t: t, wake: make(chan struct{}, 1)}
	h.outside = h.Outside()
	h.Serve(h.outside, 7)
	return h
}

func newGuardedHost(t *testing.T, ptp bool, backend string, n int) *guardedHost {
	t.Helper()
	h := newBareHost(t)
	if backend == "iptables" { // which is the executables'
		h.attachAll(guardConf(ptp, backend), n, cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}), cni.WithBuiltinPlugins())
	} else {
		h.attachAll(guardConf(ptp, backend), n, cni.WithBuiltinPlugins())
	}
	return h
}

// attachAll attaches n containers to a network.
func (h *guardedHost) attachAll(conf string, n int, opts ...cni.Opt) {
	h.t.Helper()
	conf = strings.ReplaceAll(conf, "IPAM", h.Path("ipam"))
	h.opts = append(opts, cni.WithConfListBytes([]byte(conf)), cni.WithHostNetNS(h.Path("netns", "host")))
	h.r = h.another()
	for i := range n {
		h.attach(i)
	}
}

// another returns a Runtime like r.
func (h *guardedHost) another() *cni.Runtime { return h.Runtime(h.opts...) }

func (h *guardedHost) attach(i int) {
	h.t.Helper()
	id := fmt.Sprintf("c%d", i)
	path := h.Container(id)
	testhost.MustSetUp(h.t, h.r, id, path, testhost.MapPort(int32(8000+i)))
	h.Serve(path, 80)
	h.ids = append(h.ids, id)
}

// guard runs a guard until the test ends, and waits until it has looked once.
func (h *guardedHost) guard(r *cni.Runtime, o guard.Options) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	looked, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	o.Report = func(e guard.Event) {
		h.mu.Lock()
		h.events = append(h.events, e)
		h.mu.Unlock()
		if e.Kind == guard.Looked {
			once.Do(func() { close(looked) })
		}
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
	begun := testhost.Begin(func() error {
		<-looked
		return nil
	})
	go func() { ended <- guard.Run(ctx, r, o) }()
	h.t.Cleanup(func() {
		cancel()
		expect.NoError(h.t, expect.Await(h.t, "the guard's end", ended))
	})
	expect.NoError(h.t, expect.Await(h.t, "the guard's begin", begun))
}

// taken returns the events since the last call.
func (h *guardedHost) taken() []guard.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.events
	h.events = nil
	return all
}

func count(events []guard.Event, kind guard.Kind) (n int) {
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// try asks once, for a moment: a lost packet is only sent again after a second.
func try(network, address, want string) error {
	const moment = 30 * time.Millisecond
	c, err := net.DialTimeout(network, address, moment)
	if err != nil {
		return err
	}
	defer c.Close() // everything has been sent
	if err := c.SetDeadline(time.Now().Add(moment)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return err
	}
	if got, _, _ := strings.Cut(string(buf[:n]), "\n"); want != "" && got != want {
		return fmt.Errorf("answered %q, want %q", got, want)
	}
	return nil
}

// reaches reports whether a container reaches the outside under the host's address, and
// whether the outside reaches its port.
func (h *guardedHost) reaches(i int) error {
	err := h.At(h.Path("netns", h.ids[i]), func() error { return try("udp", "192.0.2.2:7", "192.0.2.1") })
	if err != nil {
		return fmt.Errorf("%s to the outside: %w", h.ids[i], err)
	}
	err = h.At(h.outside, func() error { return try("tcp", fmt.Sprintf("192.0.2.1:%d", 8000+i), "") })
	if err != nil {
		return fmt.Errorf("the outside to %s: %w", h.ids[i], err)
	}
	return nil
}

// back waits until all containers reach the outside and are reached.
func (h *guardedHost) back(what string) time.Duration {
	h.t.Helper()
	begun := time.Now()
	errs := make([]error, len(h.ids))
	next := make(chan int)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range next {
				for {
					if errs[i] = h.reaches(i); errs[i] == nil || time.Since(begun) > *guardLimit {
						break
					}
				}
			}
		})
	}
	for i := range h.ids {
		next <- i
	}
	close(next)
	group.Wait()
	took := time.Since(begun)
	for _, err := range errs {
		if err != nil {
			h.t.Errorf("%s: after %v: %v\n%s", what, took, err, h.story())
			break
		}
	}
	return took
}

func (h *guardedHost) story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lines []string
	for _, e := range h.events {
		lines = append(lines, e.String())
	}
	return strings.Join(lines[:min(len(lines), 60)], "\n")
}

// quiet waits until no guard has reported anything for a while.
func (h *guardedHost) quiet() {
	for {
		select {
		case <-h.wake:
		case <-time.After(400 * time.Millisecond):
			return
		}
	}
}

// addresses lists the addresses of all containers, and the interfaces of the host.
func (h *guardedHost) addresses() (lines []string) {
	h.t.Helper()
	for _, id := range h.ids {
		h.Inside(h.Path("netns", id), func() error {
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
				if err != nil {
					return err
				}
				lines = append(lines, fmt.Sprint(id, l.Attrs().Index, l.Attrs().Name, l.Attrs().HardwareAddr, addrs))
			}
			return nil
		})
	}
	for _, l := range expect.Value(netlink.LinkList())(h.t) {
		addrs := expect.Value(netlink.AddrList(l, netlink.FAMILY_V4))(h.t)
		lines = append(lines, fmt.Sprint("host ", l.Attrs().Name, l.Attrs().HardwareAddr, addrs))
	}
	slices.Sort(lines)
	return lines
}

// hostEnd returns the host's end of a container's interface.
func (h *guardedHost) hostEnd(i int) string {
	h.t.Helper()
	return expect.Value(netlink.LinkByIndex(h.Link(h.Path("netns", h.ids[i]), "eth0").Attrs().ParentIndex))(h.t).Attrs().Name
}

// wantNoFlapping: each part was made again once, by one of the guards.
func (h *guardedHost) wantNoFlapping(what string, events []guard.Event) {
	h.t.Helper()
	made := make(map[string]int)
	for _, e := range events {
		switch e.Kind {
		case guard.Repaired:
			key := fmt.Sprint(e.ContainerID, " ", e.Difference.Network, " ", e.Difference.Kind, " ", e.Difference.Object)
			made[key]++
			expect.That(h.t, made[key] <= 1, "%s: repaired twice: %s", what, key)
		case guard.Contested, guard.Held:
			h.t.Errorf("%s: %v", what, e)
		}
	}
}

// guardDamages are what others do to a host, by a name. END is the host's end of a
// container's interface.
var guardDamages = []struct {
	script string
	ptp    bool
}{
	{script: "nft flush ruleset"},
	{script: "iptables -F -t nat"},
	{script: "ip link set br0 down"},
	{script: "ip link set END nomaster"},
	{script: "ip link del br0"},
	{script: "nft flush ruleset", ptp: true},
	{script: "ip route flush root 10.77.0.0/16", ptp: true},
	{script: "ip link set END down", ptp: true},
}

// TestGuardBringsTrafficBack: whatever others break, with two guards, traffic is back
// soon, no address has changed, and nothing is repaired twice.
func TestGuardBringsTrafficBack(t *testing.T) {
	var table []string
	for _, ptp := range []bool{false, true} {
		for _, backend := range []string{"", "iptables"} {
			t.Run(fmt.Sprintf("ptp %v, backend %q", ptp, backend), func(t *testing.T) {
				h := newGuardedHost(t, ptp, backend, *guardContainers)
				h.back("at first")
				h.guard(h.r, guard.Options{})
				h.guard(h.another(), guard.Options{})
				h.quiet()
				h.wantNoFlapping("at first", h.taken())
				before := h.addresses()
				for _, d := range guardDamages {
					if d.ptp != ptp {
						continue
					}
					h.sh(strings.ReplaceAll(d.script, "END", h.hostEnd(len(h.ids)/2)))
					took := h.back(d.script)
					h.quiet()
					events := h.taken()
					h.wantNoFlapping(d.script, events)
					expect.Same(t, d.script+": addresses", h.addresses(), before)
					table = append(table, fmt.Sprintf("%-5v %-10q %-34s %4d containers: %6d ms, %3d looks, %4d repaired",
						map[bool]string{true: "ptp"}[ptp], backend, d.script, len(h.ids), took.Milliseconds(), count(events, guard.Looked), count(events, guard.Repaired)))
				}
				for _, id := range h.ids {
					expect.NoError(t, h.r.Remove(context.Background(), id, ""))
				}
			})
		}
	}
	t.Logf("traffic is back:\n%s", strings.Join(table, "\n"))
}

// TestGuardNamesWhoChangedRules, and never its own process, which has changed some since.
func TestGuardNamesWhoChangedRules(t *testing.T) {
	h := newGuardedHost(t, false, "", 2)
	h.guard(h.r, guard.Options{})
	h.quiet()
	for range 2 {
		h.attach(len(h.ids))
		h.taken()
		h.sh("nft flush ruleset")
		h.back("a flush")
		h.quiet()
		named := map[string]bool{}
		for _, e := range h.taken() {
			if e.Kind == guard.Repaired && e.Difference.Kind == "rule" {
				named[e.By] = true
			}
		}
		expect.Same(t, "named", named, map[string]bool{"nft": true})
	}
}

// TestOwnChangesWakeNobody: Setup, of this and of another Runtime, has nothing looked at.
// A Remove has, since the kernel does not say who has deleted an interface, and nothing is
// repaired; nor is it after changes of queues of other programs.
func TestOwnChangesWakeNobody(t *testing.T) {
	for name, attached := range map[string]func(t *testing.T) *guardedHost{
		"bridge":     func(t *testing.T) *guardedHost { return newGuardedHost(t, false, "", 2) },
		"ptp":        func(t *testing.T) *guardedHost { return newGuardedHost(t, true, "", 2) },
		"queues":     func(t *testing.T) *guardedHost { return shapedHost(t, 2) },
		"port modes": func(t *testing.T) *guardedHost { return isolatedHost(t, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			h := attached(t)
			h.guard(h.r, guard.Options{})
			h.quiet()
			h.taken()
			for i := 10; i < 16; i++ {
				h.attach(i)
			}
			h.quiet()
			expect.Empty(t, "Setup caused", h.taken())
			other := h.another()
			for i, id := range h.ids {
				expect.NoError(t, []*cni.Runtime{h.r, other}[i%2].Remove(context.Background(), id, ""))
			}
			h.sh("ip link add vm0 type veth peer name vm1; tc qdisc add dev vm0 root tbf rate 1mbit burst 100k latency 25ms; tc qdisc del dev vm0 root; ip link del vm0")
			h.quiet()
			events := h.taken()
			expect.Same(t, fmt.Sprintf("looks, after Removes and a queue of another interface, of %q", events), count(events, guard.Looked), len(events))
		})
	}
}
