package cni_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// realHost is a host for the reference plugins, with methods for this package's
// tests.
type realHost struct{ *testhost.RealHost }

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	return &realHost{testhost.NewReal(t)}
}

// openAs counts this process's descriptors of the namespace.
func openAs(t *testing.T, id netns.ID) (n int) {
	t.Helper()
	fds := expect.Value(filepath.Glob("/proc/self/fd/*"))(t)
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(fd, &st) == nil && (netns.ID{Dev: uint64(st.Dev), Ino: st.Ino}) == id {
			n++
		}
	}
	return n
}
