package warm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/plainfile"
)

// TestFilesThatNobodyHasNamedAreDiscarded, and those that have a name stay.
func TestFilesThatNobodyHasNamedAreDiscarded(t *testing.T) {
	dir := t.TempDir()
	c := &Container{Record: plainfile.Prepare(dir, 0o600), Made: []Made{{Cache: plainfile.Prepare(dir, 0o600)}, {}}}
	f, err := c.Record.Publish(filepath.Join(dir, "record"), []byte("it"))
	expect.NoError(t, err)
	expect.NoError(t, f.Close())
	c.DiscardFiles()
	expect.Same(t, "the other file is closed", c.Made[0].Cache.Take() == nil, true)
	data, err := os.ReadFile(filepath.Join(dir, "record"))
	expect.NoError(t, err)
	expect.Same(t, "the record", string(data), "it")
	(&Container{}).DiscardFiles() // of one that could not be attached
}
