package plainfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestReadReturnsWhatAppendWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	expect.Is(t, Append(path, []byte("lost")), fs.ErrNotExist)
	expect.NoError(t, os.WriteFile(path, nil, 0o600))
	var want []byte
	for _, size := range []int{0, 1, 2047, 1, 4096, 70_000} {
		part := bytes.Repeat([]byte{byte('a' + size%7)}, size)
		want = append(want, part...)
		expect.NoError(t, Append(path, part))
		got, err := Read(path)
		expect.Must(t, err == nil && bytes.Equal(got, want), "after %d bytes: read %d bytes, %v, want %d", size, len(got), err, len(want))
	}
	info, err := os.Stat(path)
	expect.That(t, err == nil && info.Mode() == 0o600, "%v, %v, want mode 0600", info.Mode(), err)
}

func TestOpenIsThatOfOS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := expect.Value(Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400))(t)
	expect.Same(t, "name", f.Name(), path)
	expect.NoError(t, expect.Err(f.WriteString("text")), f.Close())
	expect.Same(t, "written", string(expect.Value(os.ReadFile(path))(t)), "text")
	expect.Is(t, expect.Err(Open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o400)), fs.ErrExist)
}

// TestErrorsAreThoseOfOS: callers match them, and people read them.
func TestErrorsAreThoseOfOS(t *testing.T) {
	dir := t.TempDir()
	gone := filepath.Join(dir, "gone", "file")
	_, wantOpen := os.Open(gone)
	_, wantRead := os.ReadFile(dir)
	_, open := Open(gone, os.O_RDONLY, 0)
	_, read := Read(gone)
	_, readDir := Read(dir)
	for _, tt := range []struct {
		name      string
		got, want error
	}{{"Open", open, wantOpen}, {"Read", read, wantOpen}, {"Append", Append(gone, nil), wantOpen}, {"Read of a directory", readDir, wantRead}} {
		expect.That(t, tt.got != nil && tt.got.Error() == tt.want.Error() && errors.Is(tt.got, fs.ErrNotExist) == errors.Is(tt.want, fs.ErrNotExist),
			"%s: %v, want %v", tt.name, tt.got, tt.want)
	}
}
