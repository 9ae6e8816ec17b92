package whereabouts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/sandbox"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in a sandbox. It builds whereabouts first, outside.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m, sandbox.Before(build))) }

const (
	tool = "github.com/k8snetworkplumbingwg/whereabouts/cmd"
	// programVar is the environment variable with the path of whereabouts.
	programVar = "EMBEDCNI_TEST_WHEREABOUTS"
)

// build builds whereabouts, unless the variable names one, and returns the variable. The go
// command keeps the program in its cache.
func build() ([]string, error) {
	if os.Getenv(programVar) != "" {
		return nil, nil
	}
	var stderr strings.Builder
	cmd := exec.Command("go", "tool", "-n", tool)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", tool, err, stderr.String())
	}
	path := strings.TrimSpace(string(out))
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("go tool -n %s printed %q", tool, path)
	}
	return []string{programVar + "=" + path}, nil
}
