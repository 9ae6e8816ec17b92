package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// LineBreak separates the container ID and the interface name in a reservation.
const LineBreak = "\r\n"

// Lock takes host-local's lock of a directory: the exclusive lock of the file
// "lock" in it. Like the reference plugin it creates a missing file, with the same mode.
// It waits for the holder of the lock, until the context ends. It does not create the
// directory: without one there is nothing to lock, and the error is [fs.ErrNotExist].
// Closing the file unlocks: nobody else has the description.
//
// It does not use the reference plugin's own package: that module would add all
// requirements of the reference plugins to every importer's module graph.
func Lock(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	for {
		f, err := plainfile.Open(path, os.O_CREATE|os.O_RDONLY, 0o750)
		if err != nil {
			return nil, err
		}
		if err = plainfile.Flock(ctx, f, true); err != nil {
			return nil, joined.Errors(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		mine, err := f.Stat()
		now, nerr := os.Stat(path)
		if err == nil && nerr == nil && os.SameFile(mine, now) {
			return f, nil
		}
		if errors.Is(nerr, fs.ErrNotExist) {
			nerr = nil // it was deleted meanwhile, so that others lock another one
		}
		if err = joined.Errors(err, nerr, f.Close()); err != nil {
			return nil, err
		}
	}
}
