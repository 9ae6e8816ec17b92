package plainfile

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func read(t *testing.T, path string) string {
	t.Helper()
	return string(expect.Value(os.ReadFile(path))(t))
}

// wantOnly fails the test unless the directory has that one file.
func wantOnly(t *testing.T, dir, name string) {
	t.Helper()
	entries := expect.Value(os.ReadDir(dir))(t)
	expect.That(t, len(entries) == 1 && entries[0].Name() == name, "left in the directory: %v", entries)
}

func TestWriteReplacesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hosts")
	for _, content := range []string{"", "one\n", "two\n", "longer than before\n", "short\n"} {
		expect.NoError(t, Replace(path, []byte(content), 0o644))
		info := expect.Value(os.Stat(path))(t)
		expect.Same(t, "file", []any{read(t, path), info.Mode()}, []any{content, os.FileMode(0o644)})
	}
	wantOnly(t, dir, "hosts")
}

// TestAFileWithTheContentStays: a container may have it mounted.
func TestAFileWithTheContentStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	stat := func() fs.FileInfo {
		t.Helper()
		expect.NoError(t, Replace(path, []byte("same\n"), 0o644))
		return expect.Value(os.Stat(path))(t)
	}
	first := stat()
	expect.Same(t, "still the same file", os.SameFile(first, stat()), true)
	expect.NoError(t, os.Chmod(path, 0o600))
	expect.Same(t, "mode", stat().Mode(), 0o644)
}

// TestASymbolicLinkIsReplaced: a container's file may be a link to a file of the host.
func TestASymbolicLinkIsReplaced(t *testing.T) {
	dir := t.TempDir()
	hosts, path := filepath.Join(t.TempDir(), "hosts"), filepath.Join(dir, "hosts")
	expect.NoError(t, os.WriteFile(hosts, []byte("the host's\n"), 0o644))
	expect.NoError(t, os.Symlink(hosts, path))
	for _, content := range []string{"the host's\n", "the container's\n"} {
		expect.NoError(t, Replace(path, []byte(content), 0o644))
		info, err := os.Lstat(path)
		expect.That(t, err == nil && info.Mode().IsRegular() && read(t, path) == content, "%v, %v, want a regular file with %q", info, err, content)
	}
	expect.Same(t, "the file of the host", read(t, hosts), "the host's\n")
	wantOnly(t, dir, "hosts")
}

func TestAFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hosts")
	expect.NoError(t, os.MkdirAll(filepath.Join(path, "sub"), 0o755))
	expect.Fails(t, "a directory was replaced by a file", Replace(path, []byte("x"), 0o644))
	wantOnly(t, dir, "hosts")
	expect.Fails(t, "written into a directory that does not exist", Replace(filepath.Join(dir, "none", "hosts"), nil, 0o644))
}

// TestReadersSeeWholeContents, whichever of several writers was last.
func TestReadersSeeWholeContents(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hosts")
	contents := [][]byte{bytes.Repeat([]byte("a"), 70_000), bytes.Repeat([]byte("b"), 100)}
	expect.NoError(t, Replace(path, contents[0], 0o644))
	var writers sync.WaitGroup
	for _, content := range contents {
		writers.Go(func() {
			for range 50 {
				expect.Succeeds(t, "Replace", Replace(path, content, 0o644))
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		got := read(t, path)
		expect.Must(t, got == string(contents[0]) || got == string(contents[1]), "a torn file of %d bytes", len(got))
	}
	wantOnly(t, dir, "hosts")
}
