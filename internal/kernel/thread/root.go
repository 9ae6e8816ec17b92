package thread

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// ErrRootNotPermitted means that this process may not change its root directory, for which
// the kernel wants CAP_SYS_CHROOT.
var ErrRootNotPermitted = fmt.Errorf("%w: it needs the capability CAP_SYS_CHROOT", fs.ErrPermission)

// rootError is the error of entering a directory.
func rootError(op, dir string, err error) error {
	if errors.Is(err, syscall.EPERM) {
		err = ErrRootNotPermitted
	}
	return &fs.PathError{Op: op, Path: dir, Err: err}
}
