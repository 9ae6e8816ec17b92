package record

import (
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

// TestTheDirectoryGoes: whatever happens to it, the caller hears that anything in it may have
// changed.
func TestTheDirectoryGoes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for what, remove := range map[string]func() error{
		"deleted": func() error { return os.RemoveAll(dir) },
		"renamed": func() error { return os.Rename(dir, dir+".old") },
	} {
		expect.NoError(t, os.Mkdir(dir, 0o700))
		w := opened(t, dir)
		write(t, dir, "file")
		expect.Same(t, "a file", now(t, w), Changes{Names: []string{"file"}})
		expect.NoError(t, remove())
		expect.Same(t, "lost, as it is "+what, now(t, w).Lost, true)
	}
	write(t, dir)
	for what, path := range map[string]string{"a file": dir, "nothing": dir + ".none"} {
		if _, err := WatchNames(path); err == nil {
			t.Errorf("%s can be watched", what)
		}
	}
}

// TestNoInotify: what cannot be read is an error.
func TestNoInotify(t *testing.T) {
	w := opened(t, t.TempDir())
	none := expect.Value(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	expect.NoError(t, unix.Dup3(none, int(w.file.Fd()), unix.O_CLOEXEC), unix.Close(none))
	if c, err := w.Now(); err == nil {
		t.Errorf("got %+v", c)
	}
}
