package testhost

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/netns"
)

// Host is a network namespace that represents a host in one test, with its own
// state directory and container namespaces. The test's goroutine is locked to a
// thread inside, so that plugins run there as they do on a real host.
type Host struct {
	T   testing.TB
	Dir string

	NoBuiltins bool // its Runtimes name no option of the built-in plugins

	withoutPins bool // its audits omit the pins of namespaces
}

// New makes a host and enters it. The thread is never unlocked and ends with
// the test's goroutine.
func New(t testing.TB) *Host {
	t.Helper()
	stopped := func() {}
	t.Cleanup(func() { // after the directory is deleted
		stopped()
		stopped = nil // t keeps this function, which would keep a descriptor open
	})
	h := &Host{T: t, Dir: t.TempDir()}
	t.Cleanup(func() {
		h.Unpin()
		stopped = h.stop()
	})
	ns := h.NewNetNS("host")
	nettest.Enter(t, ns)
	nettest.SetUp(t, ns, "lo")
	return h
}

// stop waits until the Runtimes of this process do nothing in the background, and
// keeps them from it until the returned function is called: a pass over abandoned
// containers would write to the directory while it is deleted.
func (h *Host) stop() (resume func()) {
	path := h.Path("state", "embedcni", "locks")
	if _, err := os.Stat(path); err != nil {
		return func() {} // no Runtime worked here, or the test has replaced the directory
	}
	ctx, cancel := context.WithTimeout(context.Background(), expect.Patience)
	defer cancel()
	held, err := lock.Open(path).Lock(ctx, container.Barrier)
	if err != nil {
		h.T.Errorf("a Runtime is still at work: %v", err)
		return func() {}
	}
	return func() {
		if err := held.Release(); err != nil {
			h.T.Error(err)
		}
	}
}

// Unpin unpins the namespaces of containers that the test leaves attached, so
// that their directory can be deleted.
func (h *Host) Unpin() {
	for _, pin := range expect.Value(filepath.Glob(h.Path("state", "embedcni", "attachments", "netns", "*")))(h.T) {
		if err := netns.Remove(pin); err != nil {
			h.T.Error(err)
		}
	}
}

// RecordFile returns the path of a container's record, without its extension.
func (h *Host) RecordFile(id string) string {
	return h.Path("state", "embedcni", "attachments", Hashed(id))
}

// Pin returns the path of a container's pin.
func (h *Host) Pin(id string) string {
	return h.Path("state", "embedcni", "attachments", "netns", Hashed(id))
}

// Hashed returns the name of a container's files.
func Hashed(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// NewNetNS makes a network namespace that lives until the test ends.
func (h *Host) NewNetNS(name string) *netns.Handle {
	h.T.Helper()
	return nettest.At(h.T, h.Path("netns", name))
}

// Container makes a container's namespace and returns its path.
func (h *Host) Container(name string) string {
	h.T.Helper()
	h.NewNetNS(name)
	return h.Path("netns", name)
}

// with calls f with the namespace at path, or the thread's if path is empty.
func (h *Host) with(path string, f func(ns *netns.Handle)) {
	h.T.Helper()
	ns := expect.Value(netns.Open(cmp.Or(path, "/proc/thread-self/ns/net")))(h.T)
	defer ns.Close()
	f(ns)
}

// Path returns a path in the host's directory.
func (h *Host) Path(elem ...string) string {
	return filepath.Join(append([]string{h.Dir}, elem...)...)
}

// Runtime returns a Runtime on this host. opts may override everything.
func (h *Host) Runtime(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	base := []cni.Opt{cni.WithStateDir(h.Path("state")), cni.WithPluginDir([]string{h.Path("bin")}),
		cni.WithPluginConfDir(h.Path("net.d"))}
	if !h.NoBuiltins {
		base = append(base, cni.WithBuiltinFallback())
	}
	return expect.Value(cni.New(append(base, opts...)...))(h.T)
}

// Audit lists everything on this host. [LeavesNothingRunning] is for the process.
func (h *Host) Audit() audit.Lines {
	h.T.Helper()
	o := audit.Options{StateDirs: []string{h.Path("state"), h.Path("ipam")}, WithoutProcess: true, Complete: true}
	if !h.withoutPins {
		o.NetNSDirs = []string{h.Path("netns")}
	}
	return expect.Value(audit.Snapshot(context.Background(), o))(h.T)
}

// Left returns the lines that were added and removed since an audit, except
// those that plugins keep for the network or the host.
func (h *Host) Left(before audit.Lines) (left, gone audit.Lines) {
	h.T.Helper()
	left, gone = audit.Diff(before, h.Audit())
	own := h.Path("state", "embedcni") // locks and marks belong to the host
	return left.Without(audit.Shared).Without(func(l string) bool { return strings.Contains(l, own) }), gone
}

// WantClean compares with an earlier audit: nothing of a container may have
// been added, and nothing may be missing.
func (h *Host) WantClean(before audit.Lines) {
	h.T.Helper()
	left, gone := h.Left(before)
	expect.Unchanged(h.T, "host", left, gone)
}
