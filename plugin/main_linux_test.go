package plugin_test

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/sandbox"
)

// TestMain supports the example, which attaches a container.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
