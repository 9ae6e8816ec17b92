package backend_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. With daemonEnv, the test binary
// is a daemon.
func TestMain(m *testing.M) {
	if os.Getenv(daemonEnv) != "" {
		daemonMain()
		return
	}
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}
