package nsfind

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// TestPrivateMountsAreFound: a directory is on a private mount, in another
// mount namespace than the first process's.
func TestPrivateMountsAreFound(t *testing.T) {
	dir := t.TempDir()
	expect.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	first := anotherMountNamespace(t)
	for _, tt := range []struct {
		what, first string
		propagation uintptr
		want        bool
	}{
		{"private", first, unix.MS_PRIVATE, true},
		{"shared", first, unix.MS_SHARED, false},
		{"private, and the first process is here", "/proc/self/ns/mnt", unix.MS_PRIVATE, false},
		{"private, and the first process may not be looked at", "/proc/0/ns/mnt", unix.MS_PRIVATE, false},
	} {
		expect.NoError(t, unix.Mount("", dir, "", tt.propagation, ""))
		got, err := MountsArePrivate(dir, tt.first)
		expect.NoError(t, err)
		expect.Same(t, tt.what, got, tt.want)
	}
}

// anotherMountNamespace returns the path of one that a process is in.
func anotherMountNamespace(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo /proc/$$/ns/mnt; exec sleep 600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.StdoutPipe()
	expect.NoError(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it cannot have ended
		_ = cmd.Wait()         // it was killed
	})
	path, err := bufio.NewReader(out).ReadString('\n')
	expect.NoError(t, err)
	path = path[:len(path)-1]
	_, err = os.Stat(path)
	expect.NoError(t, err)
	return path
}
