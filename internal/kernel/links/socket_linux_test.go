package links

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
)

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
	if s, err := Subscribe(ns, 99, 1, 0); err == nil || s != nil {
		t.Errorf("opened a socket of an unknown protocol: %v", err)
	}
	expect.Same(t, "descriptors", sockets(t), before)
}

func TestClosedSocket(t *testing.T) {
	s := expect.Value(Subscribe(nettest.New(t), unix.NETLINK_ROUTE, 1, 1<<20))(t)
	expect.NoError(t, s.Close())
	expect.Fails(t, "a closed socket hears", expect.Err(s.Next(t.Context(), func(Message) {})))
}

func sockets(t *testing.T) int {
	t.Helper()
	fds := expect.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid())))(t)
	return len(fds)
}
