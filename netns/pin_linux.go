package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Create makes a network namespace and pins it at path, where it stays until
// [Remove], whatever becomes of the process and of the handle. It holds a
// loopback interface, which is down.
//
// Missing directories are made, with mode 0755. If anything exists at path, Create
// returns [fs.ErrExist] and leaves it alone. When Create fails, it removes everything
// it made; if that fails too, the error says so.
//
// The pin is a mount. It is visible in the caller's mount namespace and in those to
// which path's file system propagates.
func Create(path string) (_ *Handle, err error) {
	defer naming(&err, "create network namespace %q", path)
	var h *Handle
	err = place(path, func() (err error) {
		if h, err = newNamed(path); err != nil {
			return err
		}
		if err = mountAt(h, path); err != nil {
			err = errors.Join(err, h.Close())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// place makes the file at path, and calls mount. If that fails, it removes all that it has
// made.
func place(path string, mount func() error) error {
	made, err := makeFile(path)
	if err == nil {
		err = mount()
	}
	if err != nil {
		err = errors.Join(err, unmake(made))
	}
	return err
}

// Pin keeps the namespace of h alive at path until [Remove], as Create does for
// a new one. If it is pinned there already, Pin does nothing; a file that was
// left behind empty, as a reboot leaves it, is used. A namespace other than h's
// at path is [fs.ErrExist].
func Pin(h *Handle, path string) (err error) {
	defer naming(&err, "pin network namespace %s at %q", h.ID(), path)
	err = place(path, func() error { return mountAt(h, path) })
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := pinnedAt(path)
	switch {
	case err != nil || there == h.ID():
		return err
	case there == ID{}:
		return mountAt(h, path)
	}
	return fmt.Errorf("namespace %s is pinned there: %w", there, fs.ErrExist)
}

// mountAt mounts the namespace on the file at path, in the mount namespace of the
// calling thread. It uses the descriptor rather than the path that the namespace was
// opened by, which may lead to another one by now.
func mountAt(h *Handle, path string) (err error) {
	defer naming(&err, "bind mount")
	return control(h.file, func(fd int) error {
		return unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), path, "", unix.MS_BIND, "")
	})
}

// makeFile makes the empty file at path and the directories above it. It returns the
// paths that it made, outermost first, also when it fails.
func makeFile(path string) (made []string, err error) {
	// A neighbour that fails removes the directories that it made, so one
	// that was there a moment ago can be missing. Each neighbour does that
	// once; the bound is for a dangling symbolic link, where nothing helps.
	const attempts = 100
	for range attempts {
		var dirs []string
		dirs, err = makeDirs(filepath.Dir(path))
		made = append(made, dirs...)
		if err == nil {
			var file *os.File
			if file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444); err == nil {
				return append(made, path), file.Close()
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return made, withoutPath(err)
}

// makeDirs is [os.MkdirAll] that returns the directories it made, outermost first.
func makeDirs(dir string) (made []string, err error) {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return nil, unix.ENOTDIR
		}
		return nil, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if parent := filepath.Dir(dir); parent != dir {
		if made, err = makeDirs(parent); err != nil {
			return made, err
		}
	}
	err = os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return made, nil // a neighbour was faster, so it is not ours
	}
	if err != nil {
		return made, err
	}
	return append(made, dir), nil
}

// unmake removes the paths that makeFile made, innermost first. A directory that a
// neighbour uses by now stays.
func unmake(made []string) error {
	for i := len(made) - 1; i >= 0; i-- {
		err := os.Remove(made[i])
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, fs.ErrExist):
			return nil
		default:
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

// Remove takes away the pin at path: it unmounts every namespace that is
// mounted there and removes the file. The mount goes at once, the namespace
// when nobody uses it any more.
//
// It returns nil if there is nothing at path, so it can be repeated after it
// was interrupted anywhere. It fails with [ErrNotNetNS], and touches nothing,
// if there is neither a network namespace nor the empty file that Create mounts
// it on: a symbolic link (and so /proc/PID/ns/net), a directory, another kind of
// namespace, a file that holds something. It fails with [ErrBusy] if the mount cannot be
// taken away from here.
//
// Remove takes whatever is at path by now. Use [RemoveIf] where that may be another
// namespace than the one that is meant.
func Remove(path string) (err error) {
	defer naming(&err, "remove network namespace %q", path)
	if err = unmount(path); err == nil {
		err = removeFile(path)
	}
	return ignoreNotExist(err)
}

// unmount detaches all namespaces mounted at path, which may be stacked.
func unmount(path string) error {
	for {
		id, err := pinnedAt(path)
		if err == nil && id != (ID{}) {
			_, err = unmountIf(path, id)
		}
		if err != nil || id == (ID{}) {
			return err
		}
	}
}

// pinnedAt returns the network namespace that is mounted at path, or the zero ID. It fails
// with ErrNotNetNS if a namespace of another kind is.
func pinnedAt(path string) (id ID, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return id, withoutPath(err)
	}
	if !info.Mode().IsRegular() {
		return id, nil
	}
	h, err := open(path)
	if errors.Is(err, ErrNotNetNS) {
		// The file that a namespace was mounted on, or another kind of namespace.
		if nsfs, err := isNSFS(path); err != nil || !nsfs {
			return id, err
		}
	}
	if err != nil {
		return id, err
	}
	return h.ID(), h.Close()
}

// removeFile unlinks the file that a namespace was mounted on.
func removeFile(path string) error {
	if err := isEmptyFile(path); err != nil {
		return err
	}
	return busy(withoutPath(os.Remove(path)))
}

// isEmptyFile returns an error unless path is a file on which Create mounts.
func isEmptyFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return withoutPath(err)
	}
	if !info.Mode().IsRegular() || info.Size() != 0 {
		return ErrNotNetNS
	}
	return nil
}
