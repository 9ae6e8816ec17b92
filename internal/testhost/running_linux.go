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
// last pass, for seconds.
func LeavesNothingRunning(t *testing.T) {
	t.Helper()
	before := measure(t)
	t.Cleanup(func() {
		var now map[string]int
		for end := time.Now().Add(expect.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
			now = measure(t)
			more := false
			for kind, n := range now {
				more = more || n > before[kind]
			}
			if !more {
				return
			}
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("left running: %v, before the test %v\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
	})
}

// measure counts what the process has, by kind.
func measure(t testing.TB) map[string]int {
	t.Helper()
	lines := expect.Value(audit.Process())(t)
	now := map[string]int{"goroutine": runtime.NumGoroutine()}
	for _, line := range lines {
		// A Runtime keeps its liveness file open until it is garbage.
		if kind, _, _ := strings.Cut(line, " "); kind != "fd" || !strings.Contains(line, "/embedcni/alive") {
			now[kind]++
		}
	}
	return now
}

// Children returns the living processes below this one, including orphans,
// because the sandbox makes it their parent.
func Children(t testing.TB) []string {
	t.Helper()
	found := expect.Value(audit.Processes())(t)
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
