package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/proc"
)

// List returns the network namespaces that are pinned in dir, and the empty files that
// pins have left behind, in the order of their names. It leaves out everything else,
// symbolic links too. A directory that does not exist has none.
func List(dir string) (_ []Entry, err error) {
	defer naming(&err, "list network namespaces in %q", dir)
	return list(dir)
}

func list(dir string) (all []Entry, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, withoutPath(err)
	}
	for _, f := range files {
		e := Entry{Path: filepath.Join(dir, f.Name())}
		e.ID, err = pinnedAt(e.Path)
		if err == nil && e.ID == (ID{}) {
			err = isEmptyFile(e.Path)
		}
		switch {
		case errors.Is(err, ErrNotNetNS), errors.Is(err, fs.ErrNotExist): // or removed meanwhile
		case err != nil:
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		default:
			all = append(all, e)
		}
	}
	return all, nil
}

// RemoveIf is [Remove] if path leads to the namespace with that identity. Otherwise it
// touches nothing, and removed is false: there is nothing at path, another namespace,
// or another kind of file. If that namespace is mounted on top of another one, RemoveIf
// takes away the mount of the first, and the other stays.
func RemoveIf(path string, id ID) (removed bool, err error) {
	defer naming(&err, "remove network namespace %s at %q", id, path)
	removed, err = removeIf(path, id)
	return removed, ignoreNotExist(err)
}

func removeIf(path string, id ID) (removed bool, err error) {
	for {
		unmounted, err := unmountIf(path, id)
		if err != nil {
			return removed, err
		}
		if !unmounted {
			break
		}
		removed = true
	}
	if !removed {
		return false, nil
	}
	if id, err := pinnedAt(path); id != (ID{}) || errors.Is(err, ErrNotNetNS) {
		return true, nil // another one was below it
	}
	return true, removeFile(path)
}

// unmountIf detaches the mount at path if it is of the namespace. The descriptor is of
// this mount, so nobody can put another one in its place meanwhile.
func unmountIf(path string, id ID) (unmounted bool, err error) {
	var fd int
	err = restart(func() (err error) {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if at, err := statFD(fd); err != nil || at != id {
		return false, err
	}
	err = unix.Unmount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		if now, err := pinnedAt(path); err != nil || now != id {
			return true, nil // somebody else was faster
		}
	}
	if err != nil {
		return false, fmt.Errorf("unmount: %w", busy(err))
	}
	return true, nil
}

// busy adds ErrBusy to an error of unmounting or unlinking that means that the mount
// cannot be taken away from here: it is locked, as it came from a more privileged mount
// namespace (EINVAL), or somebody has mounted on the file again (EBUSY).
func busy(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

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
func Sweep(dir string, o SweepOptions) (_ *SweepReport, err error) {
	defer naming(&err, "sweep network namespaces in %q", dir)
	return sweep(dir, "/proc", o)
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
	u.complete, err = proc.Scan(dir, proc.Any, func(r proc.Ref) bool {
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
