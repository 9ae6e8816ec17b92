package backend_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/thick/shim"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. With daemonEnv, the test binary
// is a daemon, and under the name shim that.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "shim" {
		shim.Main(shim.Options{Socket: "/nonexistent/multus.sock"}) // the configuration has another
	}
	if os.Getenv(daemonEnv) != "" {
		daemonMain()
		return
	}
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}
