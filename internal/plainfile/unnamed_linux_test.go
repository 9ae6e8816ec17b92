package plainfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/plainfile"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	expect.NoError(t, err)
	names := []string{}
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

// TestAnUnnamedFileAppearsWhole: with its content, after it was synced, or not at all.
func TestAnUnnamedFileAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	u := plainfile.Prepare(dir, 0o600)
	expect.Same(t, "files before it has a name", entries(t, dir), []string{})
	synced := 0
	f, err := u.Publish(path, []byte("one"), func(f *os.File) error {
		synced++
		expect.Same(t, "files while it is synced", entries(t, dir), []string{})
		return f.Sync()
	})
	expect.NoError(t, err)
	expect.NoError(t, f.Close())
	expect.Same(t, "syncs", synced, 1)
	data, err := os.ReadFile(path)
	expect.NoError(t, err)
	expect.Same(t, "content", string(data), "one")
	info, err := os.Lstat(path)
	expect.NoError(t, err)
	expect.Same(t, "mode", info.Mode(), fs.FileMode(0o600))

	_, err = u.Publish(filepath.Join(dir, "b"), []byte("two"), nil)
	expect.Is(t, err, errors.ErrUnsupported) // a file has one name
	u.Discard()
	expect.Same(t, "files", entries(t, dir), []string{"a"})
}

func TestAnUnnamedFileThatCannotBePublishedLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	expect.NoError(t, os.WriteFile(path, []byte("another"), 0o600))
	full := errors.New("full")
	for _, tt := range []struct {
		dir, path string
		sync      func(*os.File) error
		want      error
	}{
		{dir, path, nil, fs.ErrExist},
		{dir, filepath.Join(dir, "b"), func(*os.File) error { return full }, full},
		{dir, filepath.Join(dir, "missing", "b"), nil, fs.ErrNotExist},
		{filepath.Join(dir, "missing"), filepath.Join(dir, "b"), nil, errors.ErrUnsupported},
	} {
		u := plainfile.Prepare(tt.dir, 0o600)
		_, err := u.Publish(tt.path, []byte("one"), tt.sync)
		expect.Is(t, err, tt.want)
		u.Discard()
	}
	plainfile.Prepare(dir, 0o600).Discard()
	(*plainfile.Unnamed)(nil).Discard()
	_, err := (*plainfile.Unnamed)(nil).Publish(path, nil, nil)
	expect.Is(t, err, errors.ErrUnsupported)
	expect.Same(t, "files", entries(t, dir), []string{"a"})
	data, err := os.ReadFile(path)
	expect.NoError(t, err)
	expect.Same(t, "content of the other", string(data), "another")
}
