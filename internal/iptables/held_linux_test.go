package iptables

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartedToolsHoldTheLock, so recovery after the runtime's death waits
// for its child processes.
func TestStartedToolsHoldTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // nothing is written
	holding, without := Tool{Held: []*os.File{f}}, Tool{}
	got, err := holding.runTool(t.Context(), "", "/bin/sh", "-c", "readlink /proc/self/fd/3")
	if err != nil || strings.TrimSpace(got) != path {
		t.Errorf("the process has %q open, %v, want %s", got, err, path)
	}
	if got, err := without.runTool(t.Context(), "", "/bin/sh", "-c", "test ! -e /proc/self/fd/3 && echo none"); err != nil || got != "none\n" {
		t.Errorf("without a lock: %q, %v", got, err)
	}
}
