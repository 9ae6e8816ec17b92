package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// New makes a network namespace without a name. It ends when nothing refers to it any
// more: the handle, a process in it, or a path at which [Pin] keeps it. It holds a
// loopback interface, which is down.
func New() (*Handle, error) {
	h, err := newNamed(unnamed)
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	return h, nil
}

// unnamed is the name of files without a path. It is no path: that of the thread would
// lead others to another namespace.
const unnamed = "network namespace"

// newNamed makes a namespace. The handle's file gets the name.
func newNamed(name string) (h *Handle, err error) {
	err = onThread(unshare, func() (err error) {
		h, err = current(name)
		return err
	})
	return h, err
}

func unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	return nil
}

// NewIn is [New] for a namespace that belongs to a user namespace: root in that user
// namespace has all privileges in it. owner is the user namespace, for example
// /proc/PID/ns/user, opened. It needs CAP_SYS_ADMIN in owner.
//
// Only a process with a single thread can enter a user namespace. So NewIn forks one,
// which ends before NewIn returns. If owner is the caller's own user namespace, NewIn is
// New.
func NewIn(owner *os.File) (*Handle, error) {
	own, err := isOwnUserNS(owner)
	if err == nil && own {
		return New()
	}
	var h *Handle
	if err == nil {
		h, err = newIn(owner)
	}
	if err != nil {
		return nil, fmt.Errorf("create network namespace in user namespace %q: %w", owner.Name(), err)
	}
	return h, nil
}

// isOwnUserNS reports whether a file is the user namespace that the caller is in.
func isOwnUserNS(f *os.File) (own bool, err error) {
	var now, st unix.Stat_t
	var inner error
	err = control(f, func(fd int) { inner = restart(func() error { return unix.Fstat(fd, &st) }) })
	if err = errors.Join(err, inner); err != nil {
		return false, err
	}
	const path = "/proc/thread-self/ns/user"
	if err := restart(func() error { return unix.Stat(path, &now) }); err != nil {
		return false, procError("look up the thread's user namespace", err)
	}
	return idOf(&st) == idOf(&now), nil
}

func newIn(owner *os.File) (h *Handle, err error) {
	var inner error
	err = control(owner, func(fd int) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var child inside
		if child, inner = forkInside(fd); inner != nil {
			return
		}
		h, inner = open(fmt.Sprintf("/proc/%d/ns/net", child.pid))
		child.end()
	})
	if err == nil {
		err = inner
	}
	return h, err
}
