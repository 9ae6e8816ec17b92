package cni_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. It builds the reference
// plugins first, outside, where there is a network. Started by a test, the test
// binary is another runtime.
func TestMain(m *testing.M) {
	testhost.OtherRuntime(map[string]func(context.Context, *cni.Runtime, testhost.Job) error{"REAP": attachAndReap})
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}

func attachAndReap(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	if _, err := r.Setup(ctx, j.ID, j.NetNS); err != nil {
		return err
	}
	return r.Reap(ctx)
}

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
	for _, fd := range expect.Value(filepath.Glob("/proc/self/fd/*"))(t) {
		var st unix.Stat_t
		if unix.Stat(fd, &st) == nil && (netns.ID{Dev: uint64(st.Dev), Ino: st.Ino}) == id {
			n++
		}
	}
	return n
}
