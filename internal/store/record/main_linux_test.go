package record

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/sandbox"
)

// TestMain runs the tests in their own namespaces: one mounts a file system.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
