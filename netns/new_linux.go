package netns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// New makes a network namespace without a name. It ends when nothing refers to it any
// more: the handle, a process in it, or a path at which [Pin] keeps it. It holds a
// loopback interface, which is down.
func New() (_ *Handle, err error) {
	defer naming(&err, "create network namespace")
	return newNamed(unnamed)
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
		return fmt.Errorf("unshare: %w", privileged(err))
	}
	return nil
}

// privileged names the capability that the kernel's refusal to make, enter or pin a
// namespace is about.
func privileged(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: it needs the capability CAP_SYS_ADMIN", err)
	}
	return err
}
