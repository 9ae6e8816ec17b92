package notify

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// TestMessagesThatAreCutOff: nothing is read behind the end, and the caller hears that
// something is missing.
func TestMessagesThatAreCutOff(t *testing.T) {
	message := func(body int) []byte {
		b := make([]byte, unix.NLMSG_HDRLEN+body)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		return b
	}
	whole := append(message(4), message(8)...)
	for size := range len(whole) + 1 {
		n := 0
		ok := messages(whole[:size], func(Message) { n++ })
		want := map[int]int{0: 0, 20: 1, 44: 2}
		if count, complete := want[size]; ok != complete || complete && n != count {
			t.Errorf("%d of %d bytes: %d messages, %v", size, len(whole), n, ok)
		}
	}
}

// TestOpenRefused: a group that the kernel does not have is an error, and leaves no
// socket.
func TestOpenRefused(t *testing.T) {
	ns := nettest.New(t)
	before := sockets(t)
	if s, err := Open(ns, 99, 1, 0); err == nil || s != nil {
		t.Errorf("opened a socket of an unknown protocol: %v", err)
	}
	expect.Same(t, "descriptors", sockets(t), before)
}

func TestClosed(t *testing.T) {
	s := expect.Value(Open(nettest.New(t), unix.NETLINK_ROUTE, 1, 1<<20))(t)
	expect.NoError(t, s.Close())
	expect.Fails(t, "a closed socket hears", expect.Err(s.Next(t.Context(), func(Message) {})))
}

func sockets(t *testing.T) int {
	t.Helper()
	fds := expect.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid())))(t)
	return len(fds)
}
