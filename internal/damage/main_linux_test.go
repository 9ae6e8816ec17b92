package damage

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// init reserves the leading thread for TestMain. A test on it that changed its network
// namespace would change the process's.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m, sandbox.Shards(2))) }
