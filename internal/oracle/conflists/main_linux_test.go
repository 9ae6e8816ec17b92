package conflists

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces.
func TestMain(m *testing.M) {
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}
