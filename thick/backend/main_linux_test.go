package backend_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. Started as a plugin, the test binary
// acts as one, and with daemonEnv as a daemon.
func TestMain(m *testing.M) {
	if scripted.IsPlugin() {
		scripted.Main()
	}
	if os.Getenv(daemonEnv) != "" {
		daemonMain()
		return
	}
	os.Exit(refplugins.Main(m))
}
