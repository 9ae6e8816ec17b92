package multus

import (
	"context"
	"flag"
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

var update = flag.Bool("update", false, "write testdata for the version of Multus in go.mod")

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in a sandbox: Multus' programs use fixed paths below /run. It
// builds the programs and the reference plugins first, outside.
func TestMain(m *testing.M) {
	os.Exit(sandbox.Main(m, refplugins.WithScripted(),
		sandbox.Before(func() ([]string, error) { return refplugins.Env(context.Background(), os.Stderr) }),
		sandbox.Before(programs)))
}
