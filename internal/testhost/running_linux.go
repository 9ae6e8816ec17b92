package testhost

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// load counts goroutines, descriptors and processes.
type load struct{ goroutines, descriptors, processes int }

// LeavesNothingRunning fails the test if more runs at its end than now. Call it
// before anything else registers a cleanup. It waits: the search for abandoned
// containers keeps a descriptor until its last pass, for seconds.
func LeavesNothingRunning(t *testing.T) {
	t.Helper()
	before := measure(t)
	t.Cleanup(func() {
		var now load
		for end := time.Now().Add(expect.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			now = measure(t)
			if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors && now.processes <= before.processes {
				return
			}
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("left running: %+v, before the test %+v\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
	})
}

func measure(t testing.TB) load {
	t.Helper()
	r, w, err := os.Pipe() // the first pipe opens the poller, which stays
	expect.NoError(t, errors.Join(err, r.Close(), w.Close()))
	fds, err := os.ReadDir("/proc/thread-self/fd")
	expect.NoError(t, err)
	fds = slices.DeleteFunc(fds, func(fd os.DirEntry) bool {
		// A Runtime keeps its liveness file open until it is garbage.
		target, err := os.Readlink(filepath.Join("/proc/thread-self/fd", fd.Name()))
		return err == nil && strings.Contains(target, "/embedcni/alive")
	})
	return load{runtime.NumGoroutine(), len(fds), len(Children(t))}
}

// Children returns the living processes below this one, including orphans,
// because the sandbox makes it their parent.
func Children(t testing.TB) []string {
	t.Helper()
	found, err := audit.Processes()
	expect.NoError(t, err)
	return found
}

// UnableToMount runs f on a separate thread that may not mount. The thread ends
// with it.
func UnableToMount(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		_, err := without(unix.CAP_SYS_ADMIN)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
