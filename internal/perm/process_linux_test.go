package perm

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// TestMissing drops capabilities of one thread, which ends with the goroutine.
func TestMissing(t *testing.T) {
	done := make(chan []string, 2)
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread is not used again
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		if err := unix.Capget(&header, &has[0]); err != nil {
			t.Error(err)
			return
		}
		for _, drop := range []uint32{1 << unix.CAP_NET_ADMIN, 1 << unix.CAP_SYS_ADMIN} {
			has[0].Effective &^= drop
			if err := unix.Capset(&header, &has[0]); err != nil {
				t.Error(err)
				return
			}
			lacks, err := MissingCapabilities()
			if err != nil {
				t.Error(err)
			}
			done <- lacks
		}
	}()
	for _, want := range [][]string{{"CAP_NET_ADMIN"}, {"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}} {
		expect.Same(t, "missing", <-done, want)
	}
}

func TestWritableAsksTheDirectoryAbove(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o700))
	expect.NoError(t, Writable(dir))
	expect.NoError(t, Writable(filepath.Join(dir, "not", "there")))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		err := Writable(path)
		expect.Is(t, err, unix.ENOTDIR)
		expect.Same(t, "error", err.Error(), "write to "+path+": not a directory")
	}
	entries := expect.Value(os.ReadDir(dir))(t)
	expect.Same(t, "entries", len(entries), 1)
}
