package behaviour_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// init keeps the leading thread to TestMain: a test that took it to another
// network namespace would take the process's there.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in namespaces of their own, with the reference
// plugins built beforehand, outside, where there is a network. Started as a
// plugin, the test binary is one; started by a test, it is another runtime, or
// one process of a crowd.
func TestMain(m *testing.M) {
	if scripted.IsPlugin() {
		scripted.Main()
	}
	testhost.OtherRuntime(nil)
	if os.Getenv(sevenEnv) != "" {
		sevenMain()
	}
	if os.Getenv(crowdProcess) != "" {
		os.Exit(crowdMain())
	}
	os.Exit(refplugins.Main(m))
}
