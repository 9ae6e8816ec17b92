// Package chroot runs functions with another root directory, as executed plugins have it
// where a daemon in a container runs them with the root of the host.
package chroot

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// ErrNotPermitted means that this process may not change its root directory, for which the
// kernel wants CAP_SYS_CHROOT.
var ErrNotPermitted = fmt.Errorf("%w: it needs the capability CAP_SYS_CHROOT", fs.ErrPermission)

// failed is the error of entering a directory.
func failed(op, dir string, err error) error {
	if errors.Is(err, syscall.EPERM) {
		err = ErrNotPermitted
	}
	return &fs.PathError{Op: op, Path: dir, Err: err}
}
