package multus

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/shim"
)

var update = flag.Bool("update", false, "write testdata for the version of Multus in go.mod")

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in a sandbox: Multus' programs use fixed paths below /run. It
// builds them and the reference plugins first, outside. Started as a plugin, the test
// binary acts as one, and under the name of the shim as this library's.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == shimName {
		shim.Main(shim.Options{Socket: socket, QueueDir: os.Getenv(queueVar), ReadyWithin: expect.Patience})
	}
	if scripted.IsPlugin() {
		scripted.Main()
	}
	os.Exit(sandbox.Main(m,
		sandbox.Before(func() ([]string, error) { return refplugins.Env(context.Background(), os.Stderr) }),
		sandbox.Before(programs)))
}

// This library's shim is the test binary under another name, and its queue is in a
// directory of the test.
const (
	shimName = "shim"
	queueVar = "EMBEDCNI_TEST_QUEUE"
)

// ourShim returns the path of this library's shim, and the variables that it needs.
func ourShim(t *testing.T) (path string, env []string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, shimName)
	expect.NoError(t, os.Symlink(self(t), path), os.Mkdir(filepath.Join(dir, "queue"), 0o700))
	return path, []string{queueVar + "=" + filepath.Join(dir, "queue")}
}
