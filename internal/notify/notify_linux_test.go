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
	if now := sockets(t); now != before {
		t.Errorf("%d descriptors, before %d", now, before)
	}
}

func TestClosed(t *testing.T) {
	s, err := Open(nettest.New(t), unix.NETLINK_ROUTE, 1, 1<<20)
	expect.NoError(t, err)
	expect.NoError(t, s.Close())
	if _, err := s.Next(t.Context(), func(Message) {}); err == nil {
		t.Error("a closed socket hears")
	}
}

func sockets(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid()))
	expect.NoError(t, err)
	return len(fds)
}
