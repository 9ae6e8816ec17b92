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

// Create makes a network namespace and pins it at path, where it stays until
// [Remove], whatever becomes of the process and of the handle. It holds a
// loopback interface, which is down.
//
// Missing directories are made, with mode 0755, and stay. If anything exists at path,
// Create returns [fs.ErrExist] and leaves it alone. When Create fails, it removes the file
// that it made; if that fails too, the error says so.
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
			err = joined.Errors(err, h.Close())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// place makes the file at path, and calls mount. If that fails, it removes the file.
func place(path string, mount func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return withoutPath(err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return withoutPath(err)
	}
	if err = file.Close(); err == nil {
		err = mount()
	}
	if err == nil {
		return nil
	}
	if rerr := os.Remove(path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = joined.Errors(err, fmt.Errorf("clean up: %w", rerr))
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
		return privileged(unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", fd), path, "", unix.MS_BIND, ""))
	})
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
