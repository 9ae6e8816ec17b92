package plainfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found := expect.Value(os.ReadDir(dir))(t)
	names := []string{}
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

// TestAnUnnamedFileAppearsWhole: with its content, or not at all.
func TestAnUnnamedFileAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	u := plainfile.Prepare(dir, 0o600)
	expect.Same(t, "files before it has a name", entries(t, dir), []string{})
	expect.NoError(t, expect.Value(u.Publish(path, []byte("one")))(t).Close())
	expect.Same(t, "content", string(expect.Value(os.ReadFile(path))(t)), "one")
	info, err := os.Lstat(path)
	expect.NoError(t, err)
	expect.Same(t, "mode", info.Mode(), fs.FileMode(0o600))

	_, err = u.Publish(filepath.Join(dir, "b"), []byte("two"))
	expect.Is(t, err, errors.ErrUnsupported) // a file has one name
	u.Discard()
	expect.Same(t, "files", entries(t, dir), []string{"a"})
}

func TestAnUnnamedFileThatCannotBePublishedLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	expect.NoError(t, os.WriteFile(path, []byte("another"), 0o600))
	for _, tt := range []struct {
		dir, path string
		want      error
	}{
		{dir, path, fs.ErrExist},
		{dir, filepath.Join(dir, "missing", "b"), fs.ErrNotExist},
		{filepath.Join(dir, "missing"), filepath.Join(dir, "b"), errors.ErrUnsupported},
	} {
		u := plainfile.Prepare(tt.dir, 0o600)
		expect.Is(t, expect.Err(u.Publish(tt.path, []byte("one"))), tt.want)
		u.Discard()
	}
	plainfile.Prepare(dir, 0o600).Discard()
	(*plainfile.Unnamed)(nil).Discard()
	expect.Is(t, expect.Err((*plainfile.Unnamed)(nil).Publish(path, nil)), errors.ErrUnsupported)
	expect.Same(t, "files", entries(t, dir), []string{"a"})
	expect.Same(t, "content of the other", string(expect.Value(os.ReadFile(path))(t)), "another")
}
