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

// strays are files and namespaces that killed processes and power cuts left
// between two steps of writing or deleting a record.
type strays struct {
	files      []string // that belong to no record
	namespaces []string // of namespaces that belong to no record, mounted now or formerly
	dirs       []string // of pools whose process is dead, with nothing else in them
}

func (s strays) none() bool { return len(s.files)+len(s.namespaces)+len(s.dirs) == 0 }

func (s *snapshot) strays() (strays, error) {
	files, err := s.Records.Strays()
	namespaces, dirs, nerr := s.strayNamespaces()
	return strays{files, namespaces, dirs}, join(err, nerr)
}

// tidyAlone runs tidy, if there is anything to do, with all others locked out.
// If another call is in progress, it leaves the strays to the next Recover or
// GC, because waiting would hold up all later calls.
func (s *snapshot) tidyAlone() (err error) {
	if found, err := s.strays(); found.none() {
		return err
	}
	held, err := s.Locks.TryLockAll([]lock.Key{{Name: container.Barrier}})
	if held == nil {
		s.logger.Info("files that belong to no record are left for later, because other calls are in progress", "error", err)
		return nil
	}
	defer func() { err = join(err, held.Release()) }() // after a panic too
	return s.tidy()
}

// tidy deletes the strays. No ADD or DEL may be in progress. It ignores those
// that another process has deleted in the meantime.
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
		// It stays while one of its namespaces does.
		if err := removeFile(dir); !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return join(errs...)
}

// removeFile deletes a file, or an empty directory. Several processes may
// recover at once, so another may have deleted it first.
func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
