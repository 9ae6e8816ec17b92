package plainfile

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

func TestWritableAsksTheDirectoryAbove(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o700))
	expect.NoError(t, Writable(dir))
	expect.NoError(t, Writable(filepath.Join(dir, "not", "there")))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		err := Writable(path)
		expect.Is(t, err, unix.ENOTDIR)
		want := "write to " + path + ": not a directory"
		expect.That(t, err.Error() == want, "got %q, want %q", err, want)
	}
	expect.Same(t, "entries", len(expect.Value(os.ReadDir(dir))(t)), 1)
}
