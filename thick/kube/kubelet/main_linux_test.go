package kubelet_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/sandbox"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in a sandbox: the files of devices have fixed paths below /run.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
