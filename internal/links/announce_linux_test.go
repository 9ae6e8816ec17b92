package links

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

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
	do := h.Requests()
	do.Up(br.Index)
	wantNoError(t, do.Send())
	listening := newNS(t, "listener")
	s := &segment{ns: newNS(t, "c"), at: listening}
	s.c, s.listener = mustDial(t, s.ns), mustDial(t, listening)
	up := func(ns *netns.Handle, c *Conn, addr string) Pair {
		pair := must[Pair](t)(Veth{Name: "eth0", Master: br.Index}.Create(h, ns))
		do := c.Requests()
		do.AddAddress(pair.Container.Index, netip.MustParsePrefix(addr), 0)
		do.Up(pair.Container.Index)
		wantNoError(t, do.Send())
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
	wantNoError(t, s.listener.execute(m, nil))
}

func (s *segment) known(t *testing.T) Neighbour {
	t.Helper()
	ask := s.listener.Requests()
	n := ask.Neighbour(s.index, announced)
	wantNoError(t, ask.Send())
	return *n
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
		wantNoError(t, s.c.AnnounceAside(shared, s.ns, s.link, []netip.Addr{announced}))
		s.wantHeard(t, what)
	}
	if n := len(conns.sending); n != 1 {
		t.Errorf("Close waits for %d announcements, want 1", n)
	}
	wantNoError(t, conns.Close())
}

func TestAnnounceIsHeard(t *testing.T) {
	s := newSegment(t)
	do := s.c.Requests()
	do.Set4(s.link.Index, "arp_notify", 1)
	wantNoError(t, do.Send())
	s.mistaken(t, unix.NUD_STALE)
	wantNoError(t, s.c.Announce(s.link))
	s.wantHeard(t, "Announce")
}

func TestSetNeighbour(t *testing.T) {
	s := newSegment(t)
	set := func() Neighbour {
		do := s.listener.Requests()
		do.SetNeighbour(s.index, announced, s.link.MAC)
		wantNoError(t, do.Send())
		return s.known(t)
	}
	if got := set(); got.MAC != nil || got.Wrong(s.link.MAC) {
		t.Errorf("nothing was known, and %+v is now", got)
	}
	s.mistaken(t, unix.NUD_REACHABLE)
	if !s.known(t).Wrong(s.link.MAC) {
		t.Fatal("the listener is not mistaken")
	}
	if got := set(); got.Wrong(s.link.MAC) || got.MAC.String() != s.link.MAC.String() {
		t.Errorf("got %v, want %v", got.MAC, s.link.MAC)
	}
	s.mistaken(t, unix.NUD_PERMANENT)
	if got := s.known(t); got.MAC.String() != another.String() || got.Wrong(s.link.MAC) {
		t.Errorf("an administrator's entry: %+v, wrong: %t", got, got.Wrong(s.link.MAC))
	}
}
