package testhost

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// LeavesNothingRunning fails the test if more goroutines, descriptors, processes or
// mounted namespaces exist at its end than now. Call it before anything else registers
// a cleanup. It waits: the search for abandoned containers keeps a descriptor until its
// last pass, for seconds. Each look reads all of /proc/self/fd, so that a busy wait would
// take a processor from the tests beside it.
func LeavesNothingRunning(t *testing.T) {
	t.Helper()
	before := measure(t)
	t.Cleanup(func() {
		var now map[string]int
		for end, pause := time.Now().Add(expect.Patience), time.Millisecond; time.Now().Before(end); pause = min(2*pause, 50*time.Millisecond) {
			now = measure(t)
			more := false
			for kind, n := range now {
				more = more || n > before[kind]
			}
			if !more {
				return
			}
			time.Sleep(pause)
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("left running: %v, before the test %v\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
	})
}

// measure counts what the process has, by kind.
func measure(t testing.TB) map[string]int {
	t.Helper()
	now := map[string]int{"goroutine": runtime.NumGoroutine()}
	for _, line := range expect.Value(audit.Process())(t) {
		// A Runtime keeps its liveness file open until it is garbage.
		if kind, _, _ := strings.Cut(line, " "); kind != "fd" || !strings.Contains(line, "/embedcni/alive") {
			now[kind]++
		}
	}
	return now
}

// UnableToMount runs f on a separate thread that may not mount. The thread ends
// with it.
func UnableToMount(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		_, err := Without(unix.CAP_SYS_ADMIN)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Without takes capabilities from the thread.
func Without(capabilities ...int) (restore func() error, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return nil, err
	}
	less := have
	for _, c := range capabilities {
		less[0].Effective &^= 1 << c
	}
	return func() error { return unix.Capset(&header, &have[0]) }, unix.Capset(&header, &less[0])
}
