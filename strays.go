package cni

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/netns"
)

// strays are what processes that were killed, and power cuts, left between two
// steps of writing or deleting a record.
type strays struct {
	files      []string // that belong to no record
	namespaces []string // paths where a namespace is mounted, or was, that belongs to no record
	dirs       []string // of pools whose process is dead, with nothing else in them
}

func (s strays) none() bool { return len(s.files)+len(s.namespaces)+len(s.dirs) == 0 }

func (s *snapshot) strays() (strays, error) {
	files, err := s.Records.Strays()
	namespaces, dirs, nerr := s.strayNamespaces()
	return strays{files, namespaces, dirs}, join(err, nerr)
}

// tidyAlone is tidy with all others kept out, if there is anything to do. If any
// of them is under way it is left to the next Recover or GC: what waits for that
// would hold up all that come then.
func (s *snapshot) tidyAlone() (err error) {
	if found, err := s.strays(); found.none() {
		return err
	}
	held, err := s.Locks.TryLockAll([]lock.Key{{Name: container.Barrier}})
	if held == nil {
		s.logger.Info("files that belong to no record are left for later, since other calls are under way", "error", err)
		return nil
	}
	defer func() { err = join(err, held.Release()) }() // after a panic too
	return s.tidy()
}

// tidy deletes the strays. No ADD or DEL may be under way. What another process
// has deleted in the meantime is no error.
func (s *snapshot) tidy() error {
	found, err := s.strays()
	errs := []error{err}
	for _, path := range found.files {
		s.logger.Info("deleting a file that belongs to no record", "path", path)
		errs = append(errs, removeFile(path))
	}
	for _, path := range found.namespaces {
		s.logger.Info("letting go of a namespace that belongs to no record", "path", path)
		errs = append(errs, netns.Remove(path))
	}
	for _, dir := range found.dirs {
		// It stays if one of the namespaces does.
		if err := removeFile(dir); !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return join(errs...)
}

// removeFile deletes a file, or an empty directory. Several processes may recover
// at once, so another may have been faster.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
