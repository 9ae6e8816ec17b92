package contract

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

var _ Host = (*links.Conn)(nil)

// newDump returns a look at a namespace.
func newDump(t *testing.T, ns *netns.Handle) *dump {
	t.Helper()
	conn := expect.Value(links.Dial(ns))(t)
	t.Cleanup(func() { expect.NoError(t, conn.Close()) })
	return &dump{conn: conn, answers: make(map[question]any)}
}

// TestAnswersAreThoseOfTheKernel asks both about namespaces of random contents.
func TestAnswersAreThoseOfTheKernel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	filters := has(t, "link add br0 type bridge vlan_filtering 1", "the kernel was built without BRIDGE_VLAN_FILTERING")
	vlans := has(t, "link add link lo name lo.5 type vlan id 5", "the kernel was built without VLAN_8021Q")
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			ns := nettest.New(t)
			names := populate(t, &contents{rnd: rnd, filters: filters, vlans: vlans}, ns)
			conn := expect.Value(links.Dial(ns))(t)
			defer func() { expect.NoError(t, conn.Close()) }()
			var differs string
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
				// The kernel goes on by itself for a while: carriers, link-local addresses.
				if differs = difference(t, newDump(t, ns), conn, names); differs == "" {
					return
				}
			}
			t.Error(differs)
		})
	}
}

// difference describes the first answer that differs, of the first time or the second.
func difference(t *testing.T, seen *dump, live *links.Conn, names []string) string {
	t.Helper()
	indices := []int{everyInterface}
	for _, l := range expect.Value(live.Links())(t) {
		names = append(append(names, l.Name), l.Others...)
		indices = append(indices, l.Index)
	}
	for range 2 {
		for _, name := range names {
			if d := same("interface "+name, pack(seen.Link(name)), pack(live.Link(name))); d != "" {
				return d
			}
		}
		for _, index := range indices {
			for what, got := range map[string]func(Host) got{
				"interface": func(h Host) got { return pack(h.LinkByIndex(index)) },
				"addresses": func(h Host) got { return pack(h.Addresses(index)) },
				"routes":    func(h Host) got { return pack(h.Routes(index)) },
				"VLANs":     func(h Host) got { return pack(h.VLANs(index)) },
				"queues":    func(h Host) got { return pack(h.Queues(index)) },
			} {
				if d := same(fmt.Sprint(what, " of ", index), got(seen), got(live)); d != "" {
					return d
				}
			}
		}
	}
	return ""
}

// got is a value and the error that came with it.
type got struct {
	value any
	err   error
}

func pack[T any](v T, err error) got { return got{v, err} }

func same(what string, is, want got) string {
	if !reflect.DeepEqual(is.value, want.value) || fmt.Sprint(is.err) != fmt.Sprint(want.err) || links.NotFound(is.err) != links.NotFound(want.err) {
		return fmt.Sprintf("%s:\n got %+v, %v\nwant %+v, %v", what, is.value, is.err, want.value, want.err)
	}
	return ""
}

// TestTornRoutesAreAskedForByInterface: something may be missing in them.
func TestTornRoutesAreAskedForByInterface(t *testing.T) {
	ns := nettest.New(t)
	populate(t, &contents{rnd: rand.New(rand.NewPCG(1, 1))}, ns)
	torn, whole := newDump(t, ns), newDump(t, ns)
	torn.answers[question{"all routes", everyInterface}] = answer[map[int][]links.Route]{err: fmt.Errorf("list: %w", links.ErrTorn)}
	for _, l := range expect.Value(whole.conn.Links())(t) {
		expect.Same(t, l.Name, expect.Value(torn.Routes(l.Index))(t), expect.Value(whole.Routes(l.Index))(t))
	}
}

// populate fills a namespace, and returns names that are not those of interfaces.
func populate(t *testing.T, c *contents, ns *netns.Handle) []string {
	t.Helper()
	expect.NoError(t, ns.Do(nettest.NoAddressDetection))
	c.add("link set lo up")
	for i := range c.rnd.IntN(5) {
		c.pair(i)
	}
	for i := range c.rnd.IntN(3) {
		c.bridge(i)
	}
	batch(t, ns, c.lines)
	c.lines = nil
	c.running(t, ns) // a route by a nexthop object needs a carrier
	c.ports(t, ns)
	for i := range c.pairs {
		c.routes(i)
	}
	c.special()
	for i := range c.pairs {
		c.maybe("link set p%d down", i)
	}
	batch(t, ns, c.lines)
	return []string{"", "none", "a-name-that-is-too-long", "lo%d"}
}

// has reports whether a command of ip succeeds on this kernel. If not, it logs
// the reason why the tests are without.
func has(t *testing.T, command, why string) bool {
	t.Helper()
	err := nettest.New(t).Do(func() error {
		return exec.CommandContext(context.Background(), "ip", strings.Fields(command)...).Run()
	})
	if err != nil {
		t.Logf("not here: %s", why)
	}
	return err == nil
}

// batch runs commands of ip in a namespace.
func batch(t *testing.T, ns *netns.Handle, lines []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "batch")
	expect.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	expect.NoError(t, ns.Do(func() error {
		out, err := exec.CommandContext(context.Background(), "ip", "-batch", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s in\n%s", err, out, strings.Join(lines, "\n"))
		}
		return nil
	}))
}

// contents are commands of ip, without that word.
type contents struct {
	rnd            *rand.Rand
	filters, vlans bool // the kernel has VLANs on bridges, and as interfaces
	lines          []string
	pairs, bridges int
	numbers        int // of prefixes
}

func (c *contents) add(format string, args ...any) {
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
}

func (c *contents) maybe(format string, args ...any) {
	if c.rnd.IntN(2) == 0 {
		c.add(format, args...)
	}
}

// pair adds interfaces dI and pI, the first with the subnets 10.I.0.0/24 and fd00:I::/64.
func (c *contents) pair(i int) {
	c.pairs++
	c.add("link add d%d type veth peer name p%d", i, i)
	c.add("link set p%d up", i)
	c.maybe("link set d%d mtu %d alias %q txqueuelen %d", i, 1300+c.rnd.IntN(200), "some alias", c.rnd.IntN(2000))
	c.maybe("link property add dev d%d altname other%d altname another-name-that-is-long%d", i, i, i)
	c.maybe("link add link d%d name m%d type macvlan mode bridge", i, i)
	if c.vlans {
		c.maybe("link add link d%d name d%d.7 type vlan id 7", i, i)
	}
	c.add("address add 10.%d.0.1/24 dev d%d", i, i)
	c.maybe("address add 10.%d.0.2/24 dev d%d", i, i)
	c.maybe("address add 192.0.2.%d peer 198.51.100.%d/32 dev d%d", i, i, i)
	c.add("address add fd00:%d::1/64 dev d%d", i, i)
	c.maybe("address add fd00:%d::2/64 dev d%d nodad", i, i)
	c.add("link set d%d up", i)
}

// bridge adds a bridge brI.
func (c *contents) bridge(i int) {
	c.bridges++
	c.add("link add br%d type bridge", i)
	if c.filters {
		c.maybe("link set br%d type bridge vlan_filtering 1 vlan_default_pvid %d", i, c.rnd.IntN(3))
	}
	c.maybe("link set br%d promisc on", i)
	c.maybe("address add 10.1%d.0.1/24 dev br%d", i, i)
	c.maybe("link set br%d up", i)
}

// running waits until the kernel has noticed the carriers.
func (c *contents) running(t *testing.T, ns *netns.Handle) {
	t.Helper()
	conn := expect.Value(links.Dial(ns))(t)
	defer func() { expect.NoError(t, conn.Close()) }()
	for i := range c.pairs {
		expect.Eventually(t, "a carrier", func() bool { return expect.Value(conn.Link(fmt.Sprint("d", i)))(t).Running() })
	}
}

// ports adds pairs that lead to another namespace, some with an end on a bridge.
func (c *contents) ports(t *testing.T, ns *netns.Handle) {
	host, other := expect.Value(links.Dial(ns))(t), nettest.New(t)
	defer func() { expect.NoError(t, host.Close()) }()
	for i := range c.rnd.IntN(30) {
		v := links.Veth{Name: fmt.Sprint("eth", i)}
		if c.bridges > 0 {
			v.Master = expect.Value(host.Link(fmt.Sprint("br", c.rnd.IntN(c.bridges))))(t).Index
		}
		pair := expect.Value(v.Create(host, other))(t)
		if v.Master == 0 {
			continue
		}
		expect.NoError(t, links.SetPortMode(host, pair.Host.Index, links.PortMode{Hairpin: c.rnd.IntN(2) == 0, Isolated: c.rnd.IntN(2) == 0}))
		if c.filters {
			expect.NoError(t, links.AddVLAN(host, pair.Host.Index, links.VLAN{ID: uint16(10 + i), Access: c.rnd.IntN(2) == 0}))
		}
	}
}

// prefix returns a prefix that was not used before, and a gateway in the subnet
// of an interface of pair.
func (c *contents) prefix(d int) (prefix, gateway string) {
	c.numbers++
	if c.rnd.IntN(2) == 0 {
		return fmt.Sprintf("172.16.%d.0/24", c.numbers), fmt.Sprintf("10.%d.0.%d", d, 3+c.rnd.IntN(200))
	}
	return fmt.Sprintf("fd10:%d::/64", c.numbers), fmt.Sprintf("fd00:%d::%d", d, 3+c.rnd.IntN(200))
}

// routes adds routes through dI.
func (c *contents) routes(d int) {
	table := func() int { return []int{254, 253, 100, 255, 256, 1000, 70000}[c.rnd.IntN(7)] }
	for range c.rnd.IntN(20) {
		prefix, gateway := c.prefix(d)
		c.add("route add %s via %s dev d%d table %d metric %d", prefix, gateway, d, table(), c.rnd.IntN(3)*100)
		prefix, _ = c.prefix(d)
		c.add("route add %s dev d%d table %d mtu 1280", prefix, d, table())
	}
	c.maybe("route add default via 10.%d.0.9 metric %d", d, d+1)
	c.maybe("route add default via fd00:%d::9 metric %d", d, d+1)
	c.maybe("route add 172.31.%d.0/24 dev d%d src 10.%d.0.1", d, d, d)
	c.maybe("route add 172.30.%d.0/24 via 10.200.0.1 dev d%d onlink", d, d)
}

// special adds routes through no interface, or several.
func (c *contents) special() {
	for range c.rnd.IntN(6) {
		for _, typ := range []string{"blackhole", "unreachable", "prohibit", "throw"} {
			prefix, _ := c.prefix(0)
			c.maybe("route add %s %s table %d", typ, prefix, 254+c.rnd.IntN(10)*10)
		}
	}
	if c.pairs < 2 {
		return
	}
	for range c.rnd.IntN(6) {
		c.numbers++
		c.maybe("route add 172.17.%d.0/24 nexthop via 10.0.0.7 weight 2 nexthop via 10.1.0.7 nexthop dev d1", c.numbers)
		c.maybe("route add fd17:%d::/64 nexthop via fd00:0::7 nexthop via fd00:1::7 dev d1", c.numbers)
	}
	c.maybe("route add 172.29.0.0/16 via inet6 fd00:1::9 dev d1")
	if c.rnd.IntN(2) == 0 {
		c.add("nexthop add id 1 via 10.0.0.8 dev d0")
		c.add("nexthop add id 2 via 10.1.0.8 dev d1")
		c.add("nexthop add id 3 group 1/2")
		c.add("nexthop add id 4 blackhole")
		c.add("route add 172.28.1.0/24 nhid 1")
		c.add("route add 172.28.2.0/24 nhid 3")
		c.add("route add 172.28.3.0/24 nhid 4")
	}
}
