package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// List returns the network namespaces that are pinned in dir, and the empty files that
// pins have left behind, in the order of their names. It leaves out everything else,
// symbolic links too. A directory that does not exist has none.
func List(dir string) (all []Entry, err error) {
	defer naming(&err, "list network namespaces in %q", dir)
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
	defer func() { err = joined.Errors(err, unix.Close(fd)) }()
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

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
