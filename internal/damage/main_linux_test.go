package damage

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

// init reserves the leading thread for TestMain. A test on it that changed its network
// namespace would change the process's.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m)) }
