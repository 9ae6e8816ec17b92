package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lookEvery is the time between two looks for a readiness file. Multus looks once a
// second. A thousand calls that wait cost some hundredths of a processor.
const lookEvery = 100 * time.Millisecond

// await returns when the file exists, or with an error when ctx ends or a Shutdown begins.
func (s *Server) await(ctx context.Context, path string) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if there, err := exists(path); there || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.draining:
			return errDraining
		case <-ctx.Done():
			return tryLater("%s does not exist yet: %v", path, context.Cause(ctx))
		}
	}
}

// exists reports whether a file exists. An error means that it cannot be known.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	default:
		return false, tryLater("readiness file: %v", err)
	}
}
