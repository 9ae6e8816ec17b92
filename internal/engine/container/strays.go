package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/netns"
)

// strays are the leftovers of processes that were killed, and of power cuts, between
// two steps of writing or deleting a record.
type strays struct {
	namespaces []string // paths where a namespace is mounted, or was, that belongs to no record
	files      []string // that belong to no record, and directories of pools whose process is dead
	former     []string // that are of no use since an earlier version, directories with all in them too
}

func (s *Store) strays() (strays, error) {
	files, err := s.Records.Strays()
	namespaces, dirs, nerr := s.strayNamespaces()
	all := strays{namespaces, append(files, dirs...), former(filepath.Dir(s.Locks.Path()), s.Records.Dir())}
	return all, joined.Errors(err, nerr)
}

// TidyAlone is Tidy while all others are kept out, if there is anything to do. If
// another call is under way, the strays are left to the next one: waiting for it would
// hold up all calls that come meanwhile.
func (s *Store) TidyAlone() (err error) {
	found, err := s.strays()
	if len(found.files)+len(found.namespaces)+len(found.former) == 0 {
		return err
	}
	held, err := s.Locks.TryLockAll([]lock.Key{{Name: Barrier}})
	if held == nil {
		s.Logger.Info("files that belong to no record are left for later, because other calls are in progress", "error", err)
		return nil
	}
	defer func() { err = joined.Errors(err, held.Release()) }() // after a panic too
	return s.Tidy()
}

// Tidy deletes files and namespaces that belong to no record. No ADD or DEL may be
// under way. It is no error if another process has deleted some in the meantime.
func (s *Store) Tidy() error {
	found, err := s.strays()
	errs := []error{err}
	for _, path := range found.namespaces {
		s.Logger.Info("letting go of a namespace that belongs to no record", "path", path)
		errs = append(errs, netns.Remove(path))
	}
	for _, path := range found.files {
		s.Logger.Info("deleting a file that belongs to no record", "path", path)
		// A directory stays if something in it does.
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	for _, path := range found.former {
		s.Logger.Info("deleting a file that belongs to no record", "path", path)
		errs = append(errs, os.RemoveAll(path))
	}
	return joined.Errors(errs...)
}
