package ipamdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/internal/plainfile"
)

// lockDir takes host-local's lock of a directory: the exclusive lock of the file
// "lock" in it. Like host-local it creates a missing file, with the same mode.
// It waits for the holder of the lock. It does not create the directory: without
// one there is nothing to lock, and the error is [fs.ErrNotExist].
//
// It does not use host-local's own package: that module would add all
// requirements of the reference plugins to every importer's module graph.
func lockDir(dir string) (unlock func() error, err error) {
	path := filepath.Join(dir, "lock")
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: plainfile.ErrNotRegular}
	}
	f, err := plainfile.Open(path, os.O_CREATE|os.O_RDONLY, 0o750)
	if err != nil {
		return nil, err
	}
	if err := lockWhole(f); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: path, Err: err}, f.Close())
	}
	return f.Close, nil // closing unlocks: nobody else has the description
}
