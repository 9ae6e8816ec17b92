package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// List returns the network namespaces that are pinned in dir, and the empty files that
// pins have left behind, in the order of their names. It leaves out everything else,
// symbolic links too. A directory that does not exist has none.
func List(dir string) ([]Entry, error) {
	all, err := list(dir)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces in %q: %w", dir, err)
	}
	return all, nil
}

func list(dir string) (all []Entry, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, withoutPath(err)
	}
	for _, f := range files {
		e := Entry{Path: filepath.Join(dir, f.Name())}
		pinned, err := isPin(e.Path)
		if err == nil && pinned {
			e.ID, err = idAt(e.Path)
		} else if err == nil {
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

func idAt(path string) (ID, error) {
	h, err := open(path)
	if err != nil {
		return ID{}, err
	}
	return h.ID(), h.Close()
}

// RemoveIf is [Remove] if path leads to the namespace with that identity. Otherwise it
// touches nothing, and removed is false: there is nothing at path, another namespace,
// or another kind of file. If that namespace is mounted on top of another one, RemoveIf
// takes away the mount of the first, and the other stays.
func RemoveIf(path string, id ID) (removed bool, err error) {
	removed, err = removeIf(path, id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return removed, fmt.Errorf("remove network namespace %s at %q: %w", id, path, err)
	}
	return removed, nil
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
	if pinned, err := isPin(path); pinned || errors.Is(err, ErrNotNetNS) {
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
	var st unix.Stat_t
	if err := restart(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return false, err
	}
	if idOf(&st) != id {
		return false, nil
	}
	err = unix.Unmount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		if now, err := idAt(path); err != nil || now != id {
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
