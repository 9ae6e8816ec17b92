package thread

import (
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
