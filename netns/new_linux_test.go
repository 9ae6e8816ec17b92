package netns_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// sleeper starts a process with those namespaces of its own. It ends with the test.
func sleeper(t *testing.T, attr *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = attr
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been ended by the test
		_ = cmd.Wait()
	})
	return cmd
}

func fileID(t *testing.T, path string) netns.ID {
	t.Helper()
	var st unix.Stat_t
	expect.NoError(t, unix.Stat(path, &st))
	return netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
}

func TestNewHasNoNameUntilItIsPinned(t *testing.T) {
	outside := currentID(t)
	h := expect.Value(netns.New())(t)
	if h.ID() == outside || currentID(t) != outside {
		t.Errorf("made %s from %s, and is now in %s", h.ID(), outside, currentID(t))
	}
	path := filepath.Join(t.TempDir(), "ns")
	expect.NoError(t, netns.Pin(h, path))
	t.Cleanup(func() { expect.NoError(t, netns.Remove(path)) })
	expect.NoError(t, h.Close())
	again := expect.Value(netns.Open(path))(t)
	expect.Same(t, "pinned", again.ID(), h.ID())
	expect.NoError(t, again.Close())
	checkThreads(t, outside)
}

// TestSharedPinsAreSeenElsewhere, in a mount namespace that is made afterwards, and by
// iproute2; and their removal too.
func TestSharedPinsAreSeenElsewhere(t *testing.T) {
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(netns.RunDir, unix.MNT_DETACH)) })
	for range 2 {
		expect.NoError(t, netns.Share(netns.RunDir))
	}
	mounts := expect.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	expect.Same(t, "mounts", strings.Count(string(mounts), " "+netns.RunDir+" "), 1)
	other := sleeper(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
	path := filepath.Join(netns.RunDir, "blue")
	h := expect.Value(netns.Create(path))(t)
	there := fmt.Sprintf("/proc/%d/root%s", other.Process.Pid, path)
	expect.Same(t, "elsewhere", fileID(t, there), h.ID())
	if out, err := exec.Command("ip", "netns", "list").CombinedOutput(); err != nil || strings.Fields(string(out))[0] != "blue" {
		t.Errorf("ip netns list: %q, %v", out, err)
	}
	expect.NoError(t, h.Close())
	expect.NoError(t, netns.Remove(path))
	expect.Is(t, expect.Err(os.Stat(there)), fs.ErrNotExist)
	expect.Is(t, netns.Share("/dev/null"), unix.ENOTDIR)
}

// TestTheFileOfACreatedNamespaceHasItsPath: callers give the name on, as CNI_NETNS for
// example. One without a path must not have that of another namespace.
func TestTheFileOfACreatedNamespaceHasItsPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "netns")
	created := expect.Value(netns.Create(path))(t)
	made := expect.Value(netns.New())(t)
	t.Cleanup(func() { expect.NoError(t, created.Close(), made.Close(), netns.Remove(path)) })
	expect.Same(t, "name of the created one's file", created.File().Name(), path)
	if name := made.File().Name(); filepath.IsAbs(name) {
		t.Errorf("the file of an unnamed one has the path %s", name)
	}
}
