package oracle

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// init keeps the leading thread to TestMain: a test that took it to another
// network namespace would take the process's there.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in namespaces of their own, with the reference plugins
// built beforehand, outside. Started as a plugin, the test binary is one.
func TestMain(m *testing.M) {
	if scripted.IsPlugin() {
		scripted.Main()
	}
	os.Exit(refplugins.Main(m))
}
