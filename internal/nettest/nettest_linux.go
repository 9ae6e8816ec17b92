// Package nettest makes network namespaces for tests.
package nettest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// New makes a namespace that lives until the test ends.
func New(t testing.TB) *netns.Handle {
	t.Helper()
	return At(t, filepath.Join(t.TempDir(), "netns"))
}

// At makes a namespace at a path. Both live until the test ends.
func At(t testing.TB, path string) *netns.Handle {
	t.Helper()
	ns := expect.Value(netns.Create(path))(t)
	t.Cleanup(func() { expect.NoError(t, errors.Join(netns.Remove(path), ns.Close())) })
	return ns
}

// Unpin unmounts the namespace at a path, if there is one. The empty file stays, as after a
// reboot.
func Unpin(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) { // not mounted
		return nil
	}
	return err
}

// Enter moves the test's goroutine to a namespace. Its thread is never
// unlocked, and ends with the goroutine.
func Enter(t testing.TB, ns *netns.Handle) {
	t.Helper()
	runtime.LockOSThread()
	expect.NoError(t, unix.Setns(int(ns.File().Fd()), unix.CLONE_NEWNET))
}

// Inside runs f with a netlink handle in a namespace.
func Inside(t testing.TB, ns *netns.Handle, f func(*netlink.Handle) error) {
	t.Helper()
	nl := expect.Value(netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER))(t)
	defer nl.Close()
	expect.NoError(t, f(nl))
}

// Shell runs a script in a namespace. The script must succeed.
func Shell(t testing.TB, ns *netns.Handle, script string) {
	t.Helper()
	expect.NoError(t, ns.Do(func() error {
		out, err := exec.CommandContext(context.Background(), "sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %s", script, out)
		}
		return err
	}))
}

// NoAddressDetection disables IPv6 duplicate address detection for interfaces
// of the calling thread's namespace. Reference plugins wait up to two seconds
// for it. Setting "all" alone is not enough: the larger value counts.
func NoAddressDetection() error {
	for _, which := range []string{"all", "default"} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", which, "accept_dad")
		if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
