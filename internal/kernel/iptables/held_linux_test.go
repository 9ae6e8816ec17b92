package iptables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestStartedToolsHoldTheLock, so recovery after the runtime's death waits
// for its child processes.
func TestStartedToolsHoldTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	expect.NoError(t, err)
	defer f.Close() // nothing is written
	holding, without := Tool{Held: f}, Tool{}
	got, err := holding.runTool(t.Context(), "", "/bin/sh", "-c", "readlink /proc/self/fd/3")
	if err != nil || strings.TrimSpace(got) != path {
		t.Errorf("the process has %q open, %v, want %s", got, err, path)
	}
	expect.Same(t, "without a lock", expect.Value(without.runTool(t.Context(), "", "/bin/sh", "-c", "test ! -e /proc/self/fd/3 && echo none"))(t), "none\n")
}
