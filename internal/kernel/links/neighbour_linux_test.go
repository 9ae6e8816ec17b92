package links

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

var listening = netip.MustParseAddr("10.9.0.3")

// patient has the kernel wait for an hour before it repeats a question.
func patient(t *testing.T, ns *netns.Handle, family string) {
	t.Helper()
	expect.NoError(t, ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/"+family+"/neigh/eth0/retrans_time_ms", []byte("3600000"), 0)
	}))
}

// asks has a namespace ask for an address that nobody answers for now.
func asks(t *testing.T, c *Conn, index int, addr netip.Addr) {
	t.Helper()
	expect.NoError(t, c.do(neighbour(unix.RTM_DELNEIGH, unix.NLM_F_ACK, index, 0, addr), nil, "forget", unix.ENOENT))
	expect.NoError(t, Resolve(c, index, []netip.Addr{addr}, false))
	expect.Eventually(t, "a question", func() bool { return neighbourOf(t, c, index, addr).asked })
}

func neighbourOf(t *testing.T, c *Conn, index int, addr netip.Addr) Neighbour {
	t.Helper()
	return must[Neighbour](t)(NeighbourAt(c, index, addr))
}

// set sets an interface up or down, and waits for its carrier.
func set(t *testing.T, c *Conn, index int, up bool) {
	t.Helper()
	change := Change{Clear: unix.IFF_UP}
	if up {
		change = Change{Set: unix.IFF_UP}
	}
	expect.NoError(t, c.Change(index, change))
	if up {
		expect.Eventually(t, "the carrier", func() bool { return must[Link](t)(c.LinkByIndex(index)).Running() })
	}
}

// TestResolve: nobody waits for the kernel to repeat a question that was lost.
func TestResolve(t *testing.T) {
	s := newSegment(t)
	patient(t, s.at, "ipv4")
	patient(t, s.ns, "ipv4")
	knows := func(what string, c *Conn, index int, addr netip.Addr, want Link) {
		t.Helper()
		expect.Eventually(t, what, func() bool { return neighbourOf(t, c, index, addr).MAC.String() == want.MAC.String() })
	}
	resolve := func(unanswered bool) {
		t.Helper()
		expect.NoError(t, Resolve(s.listener, s.index, []netip.Addr{announced}, unanswered))
	}
	own := must[Link](t)(s.listener.LinkByIndex(s.index))

	resolve(false)
	knows("an unknown neighbour", s.listener, s.index, announced, s.link)
	resolve(true)
	resolve(false) // asks the neighbour that is known
	knows("a known neighbour", s.listener, s.index, announced, s.link)

	set(t, s.c, s.link.Index, false)
	asks(t, s.listener, s.index, announced)
	set(t, s.c, s.link.Index, true)
	s.pass()
	resolve(true)
	knows("a neighbour that was asked in vain", s.listener, s.index, announced, s.link)

	set(t, s.listener, s.index, false)
	asks(t, s.c, s.link.Index, listening)
	set(t, s.listener, s.index, true)
	s.pass()
	resolve(false)
	knows("one that had asked in vain", s.c, s.link.Index, listening, own)

	s.mistaken(t, unix.NUD_PERMANENT)
	resolve(false)
	expect.Same(t, "an administrator's entry", s.known(t).MAC.String(), another.String())
}

// TestResolve6 is TestResolve for IPv6, whose neighbour is asked from the link-local
// address.
func TestResolve6(t *testing.T) {
	s := newSegment(t)
	addr := netip.MustParseAddr("fd00:9::2")
	expect.NoError(t, s.c.AddAddress(s.link.Index, netip.PrefixFrom(addr, 64), false))
	expect.NoError(t, s.listener.AddAddress(s.index, netip.MustParsePrefix("fd00:9::3/64"), false))
	expect.Eventually(t, "the neighbour's hardware address", func() bool {
		expect.NoError(t, Resolve(s.listener, s.index, []netip.Addr{addr}, true))
		return neighbourOf(t, s.listener, s.index, addr).MAC.String() == s.link.MAC.String()
	})
}

// segment is a bridge with two containers, c and a listener.
type segment struct {
	c        *Conn
	ns       *netns.Handle
	link     Link
	listener *Conn
	at       *netns.Handle // the listener's namespace
	index    int           // of the listener's interface
	pass     func()        // waits until the bridge's ports forward packets
}

var announced = netip.MustParseAddr("10.9.0.2")

func newSegment(t *testing.T) *segment {
	t.Helper()
	h := mustDial(t, newNS(t, "host"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	expect.NoError(t, h.Up(br.Index))
	listening := newNS(t, "listener")
	s := &segment{ns: newNS(t, "c"), at: listening}
	s.c, s.listener = mustDial(t, s.ns), mustDial(t, listening)
	up := func(ns *netns.Handle, c *Conn, addr string) Pair {
		pair := must[Pair](t)(Veth{Name: "eth0", Master: br.Index}.Create(h, ns))
		expect.NoError(t, c.AddAddress(pair.Container.Index, netip.MustParsePrefix(addr), false))
		expect.NoError(t, c.Up(pair.Container.Index))
		return pair
	}
	first := up(s.ns, s.c, announced.String()+"/24")
	second := up(listening, s.listener, "10.9.0.3/24")
	s.pass = func() { passes(t, h, first.Host.Index, second.Host.Index) }
	s.pass()
	s.link, s.index = first.Container, second.Container.Index
	return s
}

// passes waits until the ports forward packets.
func passes(t *testing.T, h *Conn, ports ...int) {
	t.Helper()
	for _, port := range ports {
		expect.Eventually(t, "a port's carrier", func() bool { return must[Link](t)(h.LinkByIndex(port)).Running() })
	}
}

var another = net.HardwareAddr{2, 0, 0, 0, 0, 9}

// mistaken gives the listener a wrong neighbour entry for the address.
func (s *segment) mistaken(t *testing.T, state uint16) {
	t.Helper()
	m := neighbour(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, s.index, state, announced, data(unix.NDA_LLADDR, another...))
	expect.NoError(t, s.listener.execute(m, nil))
}

func (s *segment) known(t *testing.T) Neighbour {
	t.Helper()
	return neighbourOf(t, s.listener, s.index, announced)
}

// wantHeard waits until the listener has the right one.
func (s *segment) wantHeard(t *testing.T, what string) {
	t.Helper()
	expect.Eventually(t, what+": the listener's news", func() bool { return !s.known(t).Wrong(s.link.MAC) })
}

func TestAnnounceAsideIsHeard(t *testing.T) {
	s := newSegment(t)
	var conns Conns
	for what, shared := range map[string]*Conns{"by itself": nil, "begun at the end": &conns} {
		s.mistaken(t, unix.NUD_STALE)
		if !s.known(t).Wrong(s.link.MAC) {
			t.Fatalf("%s: the listener is not mistaken", what)
		}
		expect.NoError(t, AnnounceAside(s.c, shared, s.ns, s.link, []netip.Addr{announced}))
		s.wantHeard(t, what)
	}
	expect.Same(t, "announcements that Close waits for", len(conns.sending), 1)
	expect.NoError(t, conns.Close())
}

func TestAnnounceIsHeard(t *testing.T) {
	s := newSegment(t)
	expect.NoError(t, Set4(s.c, s.link.Index, "arp_notify", 1))
	s.mistaken(t, unix.NUD_STALE)
	expect.NoError(t, Announce(s.c, s.link))
	s.wantHeard(t, "Announce")
}

func TestSetNeighbour(t *testing.T) {
	s := newSegment(t)
	set := func() Neighbour {
		expect.NoError(t, SetNeighbour(s.listener, s.index, announced, s.link.MAC))
		return s.known(t)
	}
	got := set()
	expect.That(t, got.MAC == nil && !got.Wrong(s.link.MAC), "nothing was known, and %+v is now", got)
	s.mistaken(t, unix.NUD_REACHABLE)
	expect.Must(t, s.known(t).Wrong(s.link.MAC), "the listener is not mistaken")
	got = set()
	expect.That(t, !got.Wrong(s.link.MAC) && got.MAC.String() == s.link.MAC.String(), "got %v, want %v", got.MAC, s.link.MAC)
	s.mistaken(t, unix.NUD_PERMANENT)
	got = s.known(t)
	expect.That(t, got.MAC.String() == another.String() && !got.Wrong(s.link.MAC),
		"an administrator's entry: %+v, wrong: %t", got, got.Wrong(s.link.MAC))
}
