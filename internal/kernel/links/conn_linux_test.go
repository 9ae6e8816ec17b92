package links

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// borrowed borrows from all, and returns the descriptor.
func borrowed(t *testing.T, all *Conns, ns *netns.Handle) (*Conn, int) {
	t.Helper()
	c := must[*Conn](t)(all.Borrow(ns))
	return c, c.fd
}

// closed reports whether the descriptor no longer belongs to a socket.
func closed(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return errors.Is(err, unix.EBADF)
}

func TestASocketIsBorrowedAgain(t *testing.T) {
	a, b := newNS(t, "a"), newNS(t, "b")
	var all Conns
	first, fd := borrowed(t, &all, a)
	second, fd2 := borrowed(t, &all, a)
	expect.Must(t, fd != fd2, "two have one socket")
	expect.NoError(t, first.Close())
	expect.NoError(t, first.Close()) // returns it once
	if _, got := borrowed(t, &all, b); got == fd {
		t.Error("a socket of another namespace")
	}
	again, got := borrowed(t, &all, a)
	expect.Same(t, "the descriptor again", got, fd)
	expect.Value(again.Link("lo"))(t)
	_, got = borrowed(t, &all, a)
	expect.That(t, got != fd, "a socket that was given back twice is used by two")
	expect.NoError(t, second.Close())
	expect.NoError(t, again.Close())
	expect.NoError(t, all.Close())
}

func TestCloseOfAllClosesEverySocket(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	idle, idleFD := borrowed(t, &all, ns)
	inUse, inUseFD := borrowed(t, &all, ns)
	expect.NoError(t, idle.Close())
	expect.NoError(t, all.Close())
	expect.That(t, closed(idleFD) && !closed(inUseFD), "idle closed: %t, in use closed: %t; want true, false", closed(idleFD), closed(inUseFD))
	expect.Succeeds(t, "the one in use", expect.Err(inUse.Link("lo")))
	expect.NoError(t, inUse.Close())
	expect.That(t, closed(inUseFD), "the one that was in use stays open")
	expect.NoError(t, all.Close())
}

// TestASocketWithAnAnswerUnreadIsNotBorrowedAgain: the unread part would keep
// the next list from beginning.
func TestASocketWithAnAnswerUnreadIsNotBorrowedAgain(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	c, fd := borrowed(t, &all, ns)
	c.buf = c.buf[:64] // too small for the first part of the answer
	err := c.execute(linkList(), nil)
	expect.Must(t, errors.Is(err, errTruncated), "got %v", err)
	expect.NoError(t, c.Close())
	expect.That(t, c.broken && closed(fd), "broken: %t, closed: %t; want both", c.broken, closed(fd))
	expect.NoError(t, all.Close())
}

func TestBorrowAtOnce(t *testing.T) {
	ns := newNS(t, "ns")
	var all Conns
	var users sync.WaitGroup
	for range 8 {
		users.Go(func() {
			for range 50 {
				c, err := all.Borrow(ns)
				if err != nil {
					t.Error(err)
					return
				}
				expect.Succeeds(t, "Link", expect.Err(c.Link("lo")))
				expect.Succeeds(t, "Close", c.Close())
			}
		})
	}
	users.Wait()
	n := len(all.idle[ns.ID()])
	expect.That(t, n >= 1 && n <= 8, "%d sockets for 8 users", n)
	expect.NoError(t, all.Close())
}

// many is a namespace whose list of interfaces takes several reads.
type many struct {
	list, other *Conn
	interfaces  int
	m           *nl.NetlinkRequest
}

func newMany(t *testing.T) *many {
	t.Helper()
	ns := newNS(t, "ns")
	many := &many{list: mustDial(t, ns), other: mustDial(t, ns), interfaces: 61} // with lo
	for i := range many.interfaces - 1 {
		must[Link](t)(Bridge{Name: fmt.Sprint("br", i)}.Create(many.other))
	}
	many.m = linkList()
	return many
}

// count lists the interfaces, and creates one during each of the first torn
// attempts.
func (many *many) count(t *testing.T, torn int) (attempts, found int, err error) {
	t.Helper()
	err = many.list.list(many.m, func() { attempts++; found = 0 }, func(message) {
		if found++; found == 1 && attempts <= torn {
			must[Link](t)(Bridge{Name: fmt.Sprint("new", many.interfaces)}.Create(many.other))
			many.interfaces++
		}
	})
	return attempts, found, err
}

func TestAnInterruptedListIsRepeated(t *testing.T) {
	many := newMany(t)
	for _, torn := range []int{0, 1, mostLists - 1} {
		attempts, found, err := many.count(t, torn)
		if err != nil || attempts != torn+1 || found != many.interfaces {
			t.Errorf("interrupted %d times: got %d interfaces in %d attempts, and %v; want %d in %d",
				torn, found, attempts, err, many.interfaces, torn+1)
		}
	}
}

// TestAListThatIsAlwaysInterruptedIsTorn, and the socket still works.
func TestAListThatIsAlwaysInterruptedIsTorn(t *testing.T) {
	many := newMany(t)
	attempts, found, err := many.count(t, mostLists)
	expect.That(t, errors.Is(err, ErrTorn) && attempts == mostLists && found >= many.interfaces-1,
		"got %d interfaces in %d attempts, and %v", found, attempts, err)
	got := must[[]Link](t)(many.list.Links())
	expect.That(t, len(got) == many.interfaces, "then got %d interfaces, want %d", len(got), many.interfaces)
}

// TestAnErrorEndsTheAttempts.
func TestAnErrorEndsTheAttempts(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	attempts := 0
	err := c.list(linkList(), func() { attempts++ }, func(m message) { *m.bad = unix.EBADMSG })
	expect.That(t, errors.Is(err, unix.EBADMSG) && attempts == 1, "got %v after %d attempts", err, attempts)
}

// TestAllAddressesAreThoseOfEach interface, though there are too many for one read.
func TestAllAddressesAreThoseOfEach(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	var want []Address
	for i := range 5 {
		br := must[Link](t)(Bridge{Name: fmt.Sprint("br", i)}.Create(c))
		for k := range 60 {
			expect.NoError(t, c.AddAddress(br.Index, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(k), 1}), 24), false))
			expect.NoError(t, c.AddAddress(br.Index, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i), 14: byte(k)}), 112), false))
		}
		want = append(want, must[[]Address](t)(c.Addresses(br.Index))...)
	}
	got := must[[]Address](t)(c.Addresses(0))
	order := func(a, b Address) int { return a.Addr().Compare(b.Addr()) }
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	expect.Same(t, "addresses", got, want)
}

func TestOtherNamesFindAnInterface(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	br := must[Link](t)(Bridge{Name: "br0"}.Create(c))
	m := request(unix.RTM_NEWLINKPROP, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, ifinfo(br.Index, 0, 0), nest(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED,
		str(unix.IFLA_ALT_IFNAME, "bridge"), str(unix.IFLA_ALT_IFNAME, "the-bridge-of-the-office")))
	expect.NoError(t, c.execute(m, nil))
	got := must[Link](t)(c.Link("bridge"))
	want := []string{"bridge", "the-bridge-of-the-office"}
	expect.That(t, got.Name == "br0" && reflect.DeepEqual(got.Others, want), "got %q, also named %q, want br0, %q", got.Name, got.Others, want)
}

func TestMissingHasTheKernelsWords(t *testing.T) {
	c := mustDial(t, newNS(t, "ns"))
	for _, name := range []string{"", "none", "a-name-that-is-too-long"} {
		_, err := c.Link(name)
		want := Missing(name)
		expect.That(t, err != nil && err.Error() == want.Error() && NotFound(want), "%q: got %v, want %v", name, err, want)
	}
}

// TestWhatIsCutOffIsLost: nothing is read behind the end, and the caller hears that
// something is missing.
func TestWhatIsCutOffIsLost(t *testing.T) {
	ns := nettest.New(t)
	for i, size := range []int{0, 8, unix.NLMSG_HDRLEN, 100, largest} {
		s := expect.Value(Subscribe(ns, unix.NETLINK_ROUTE, 1, 0))(t)
		s.buf = make([]byte, size)
		nettest.AddBridge(t, ns, fmt.Sprint("br", i))
		heard := false
		lost := expect.Value(s.Next(t.Context(), func(Message) { heard = true }))(t)
		whole := size == largest
		expect.Same(t, fmt.Sprintf("lost, and heard, in %d bytes", size), []bool{lost, heard}, []bool{!whole, whole})
		expect.NoError(t, s.Close())
	}
}

// TestSubscribeRefused: a protocol that the kernel does not have is an error, and leaves no
// socket.
func TestSubscribeRefused(t *testing.T) {
	ns := nettest.New(t)
	before := sockets(t)
	s, err := Subscribe(ns, 99, 1, 0)
	expect.That(t, err != nil && s == nil, "opened a socket of an unknown protocol: %v", err)
	expect.Same(t, "descriptors", sockets(t), before)
}

func TestClosedSocket(t *testing.T) {
	s := expect.Value(Subscribe(nettest.New(t), unix.NETLINK_ROUTE, 1, 1<<20))(t)
	expect.NoError(t, s.Close())
	expect.Fails(t, "a closed socket hears", expect.Err(s.Next(t.Context(), func(Message) {})))
}

func sockets(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid())))(t))
}
