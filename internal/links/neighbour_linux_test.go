package links

import (
	"context"
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
	wantNoError(t, ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/"+family+"/neigh/eth0/retrans_time_ms", []byte("3600000"), 0)
	}))
}

// asks has a namespace ask for an address that nobody answers for now.
func asks(t *testing.T, c *Conn, index int, addr netip.Addr) {
	t.Helper()
	do := c.Requests()
	do.add(neighbour(unix.RTM_DELNEIGH, unix.NLM_F_ACK, index, 0, addr), nil, "forget", unix.ENOENT)
	wantNoError(t, do.Send())
	wantNoError(t, c.Resolve(index, []netip.Addr{addr}, false))
	expect.Eventually(t, "a question", func() bool { return neighbourOf(t, c, index, addr).asked })
}

func neighbourOf(t *testing.T, c *Conn, index int, addr netip.Addr) Neighbour {
	t.Helper()
	ask := c.Requests()
	n := ask.Neighbour(index, addr)
	wantNoError(t, ask.Send())
	return *n
}

// set sets an interface up or down, and waits for its carrier.
func set(t *testing.T, c *Conn, index int, up bool) {
	t.Helper()
	change := Change{Clear: unix.IFF_UP}
	if up {
		change = Change{Set: unix.IFF_UP}
	}
	wantNoError(t, c.Change(index, change))
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
		wantNoError(t, s.listener.Resolve(s.index, []netip.Addr{announced}, unanswered))
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
	wantNoError(t, s.c.AddAddress(s.link.Index, netip.PrefixFrom(addr, 64), unix.IFA_F_NODAD))
	wantNoError(t, s.listener.AddAddress(s.index, netip.MustParsePrefix("fd00:9::3/64"), unix.IFA_F_NODAD))
	expect.Eventually(t, "the neighbour's hardware address", func() bool {
		wantNoError(t, s.listener.Resolve(s.index, []netip.Addr{addr}, true))
		return neighbourOf(t, s.listener, s.index, addr).MAC.String() == s.link.MAC.String()
	})
}

// TestAwaitRunning: until the other end is up, and not for an end that is down itself.
func TestAwaitRunning(t *testing.T) {
	host, ns := mustDial(t, newNS(t, "host")), newNS(t, "c")
	c := mustDial(t, ns)
	pair := must[Pair](t)(Veth{Name: "eth0"}.Create(host, ns))
	wantNoError(t, AwaitRunning(t.Context(), ns, pair.Container.Index)) // it is down
	wantNoError(t, c.Change(pair.Container.Index, Change{Set: unix.IFF_UP}))
	wantNoError(t, host.Change(pair.Host.Index, Change{Clear: unix.IFF_UP}))
	expect.Eventually(t, "no carrier", func() bool { return !must[Link](t)(c.LinkByIndex(pair.Container.Index)).Running() })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, AwaitRunning(ended, ns, pair.Container.Index), context.Canceled)
	done := make(chan error, 1)
	go func() { done <- AwaitRunning(t.Context(), ns, pair.Container.Index) }()
	wantNoError(t, host.Change(pair.Host.Index, Change{Set: unix.IFF_UP}))
	wantNoError(t, expect.Await(t, "the carrier", done))
	if !must[Link](t)(c.LinkByIndex(pair.Container.Index)).Running() {
		t.Error("it is not running")
	}
}
