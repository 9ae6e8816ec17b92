package record

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

func opened(t *testing.T, dir string) *Watch {
	t.Helper()
	w := expect.Value(WatchFiles(dir))(t)
	t.Cleanup(func() { expect.NoError(t, w.Close()) })
	return w
}

func now(t *testing.T, w *Watch) Changes {
	t.Helper()
	return expect.Value(w.Now())(t)
}

func write(t *testing.T, elem ...string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(filepath.Join(elem...), []byte("x"), 0o600))
}

func TestChanges(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "old")
	write(t, dir, "older")
	w := opened(t, dir)
	expect.Same(t, "nothing", now(t, w), Changes{})
	write(t, dir, "new")
	write(t, dir, "new")
	write(t, dir, "old")
	expect.NoError(t, os.Rename(filepath.Join(dir, "older"), filepath.Join(dir, "renamed")))
	expect.Same(t, "changes", now(t, w), Changes{Names: []string{"new", "old", "older", "renamed"}})
	expect.NoError(t, os.Remove(filepath.Join(dir, "new")))
	expect.Same(t, "a deletion", now(t, w), Changes{Names: []string{"new"}})
	expect.Same(t, "nothing more", now(t, w), Changes{})
}

// TestNamesOnly: a file that is written to keeps its name.
func TestNamesOnly(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "old")
	w := expect.Value(WatchNames(dir))(t)
	defer func() { expect.NoError(t, w.Close()) }()
	write(t, dir, "old")
	expect.Same(t, "nothing", now(t, w), Changes{})
	write(t, dir, "new")
	expect.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "old")))
	expect.NoError(t, os.Link(filepath.Join(dir, "old"), filepath.Join(dir, "another")))
	expect.NoError(t, os.Remove(filepath.Join(dir, "another")))
	expect.Same(t, "changes", now(t, w), Changes{Names: []string{"new", "old", "another"}})
}

// TestDirectoryComesAndGoes: whatever happens to the directory, the caller hears that
// anything in it may have changed.
func TestDirectoryComesAndGoes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	w := opened(t, dir)
	expect.Same(t, "lost, without a directory", now(t, w).Lost, false)
	for round := range 3 {
		expect.NoError(t, os.Mkdir(dir, 0o700))
		write(t, dir, "first")
		expect.Same(t, fmt.Sprint("lost, as it has come, round ", round), now(t, w).Lost, true)
		write(t, dir, "second")
		expect.Same(t, "then", now(t, w), Changes{Names: []string{"second"}})
		if round == 1 {
			expect.NoError(t, os.Rename(dir, dir+".old"))
		} else {
			expect.NoError(t, os.RemoveAll(dir))
		}
		expect.Same(t, fmt.Sprint("lost, as it is gone, round ", round), now(t, w).Lost, true)
	}
	// A file in its place is no directory.
	write(t, dir)
	expect.Empty(t, "a file", now(t, w).Names)
}

// TestNoWatchesLeft: without a watch, each call says that anything may have changed.
func TestNoWatchesLeft(t *testing.T) {
	w := opened(t, t.TempDir())
	w.watched = false
	fd := int(w.file.Fd())
	none := expect.Value(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	expect.NoError(t, unix.Dup3(none, fd, unix.O_CLOEXEC), unix.Close(none)) // no inotify any more
	for range 2 {
		c, err := w.Now()
		expect.That(t, err != nil && c.Lost, "got %+v, %v", c, err)
	}
}
