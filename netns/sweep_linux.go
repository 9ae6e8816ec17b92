package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/internal/proc"
)

// Sweep removes the namespaces in dir whose names begin with a prefix and that nobody
// uses, and the empty files with such names. A namespace is in use, and stays, if a
// thread of any process is in it, a process has it open, or it is mounted at another
// path too, in any mount namespace. While a process cannot be examined, which needs
// the privilege to trace it, all may be in use.
//
// A namespace that was just made, and that nobody has entered yet, is not in use: the
// prefix must be the caller's own, and nobody may create namespaces with it meanwhile.
// Processes of another PID namespace, unless that is below the caller's, are not
// visible.
func Sweep(dir string, o SweepOptions) (*SweepReport, error) {
	report, err := sweep(dir, "/proc", o)
	if err != nil {
		return report, fmt.Errorf("sweep network namespaces in %q: %w", dir, err)
	}
	return report, nil
}

func sweep(dir, proc string, o SweepOptions) (*SweepReport, error) {
	if o.Prefix == "" {
		return nil, errors.New("the prefix is empty")
	}
	real, err := filepath.EvalSymlinks(dir) // as mounts are listed
	if errors.Is(err, os.ErrNotExist) {
		return &SweepReport{}, nil
	}
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, withoutPath(err)
	}
	found, err := list(real)
	if err != nil {
		return nil, err
	}
	u, err := usersOf(proc)
	if err != nil {
		return nil, err
	}
	report := &SweepReport{}
	var errs []error
	for _, e := range found {
		name := filepath.Base(e.Path)
		if !strings.HasPrefix(name, o.Prefix) {
			continue
		}
		at := Entry{Path: filepath.Join(dir, name), ID: e.ID}
		var why error
		if o.Keep != nil {
			why = o.Keep(at)
		}
		if why == nil {
			why = u.why(e)
		}
		if why == nil && !o.DryRun {
			if err := removeUnused(e); err != nil {
				why = err
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		report.add(at, why)
	}
	return report, errors.Join(errs...)
}

func (r *SweepReport) add(e Entry, kept error) {
	if kept == nil {
		r.Removed = append(r.Removed, e)
		return
	}
	if r.Kept == nil {
		r.Kept = make(map[string]error)
	}
	r.Kept[e.Path] = kept
}

func removeUnused(e Entry) error {
	if e.ID == (ID{}) {
		return ignoreNotExist(removeFile(e.Path))
	}
	_, err := removeIf(e.Path, e.ID)
	return ignoreNotExist(err)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// users are the references to all network namespaces, by inode.
type users struct {
	refs     map[uint64][]proc.Ref
	complete bool
}

func usersOf(dir string) (*users, error) {
	u := &users{refs: make(map[uint64][]proc.Ref)}
	var err error
	u.complete, err = proc.Scan(dir, func(r proc.Ref) bool {
		u.refs[r.Inode] = append(u.refs[r.Inode], r)
		return true
	})
	return u, err
}

// why returns the reason why a namespace is in use, or nil. A copy of its mount, at the
// same path in another mount namespace, is none.
func (u *users) why(e Entry) error {
	if e.ID == (ID{}) {
		return nil
	}
	for _, r := range u.refs[e.ID.Ino] {
		switch {
		case r.Kind == proc.Thread:
			return fmt.Errorf("%w: process %d is in it", ErrBusy, r.Task.PID)
		case r.Kind == proc.Descriptor:
			return fmt.Errorf("%w: process %d has it open", ErrBusy, r.Task.PID)
		case r.At != e.Path:
			return fmt.Errorf("%w: it is mounted at %s too", ErrBusy, r.At)
		}
	}
	if !u.complete {
		return fmt.Errorf("%w, perhaps: not all processes could be examined", ErrBusy)
	}
	return nil
}
