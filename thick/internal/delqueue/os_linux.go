package delqueue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// sinceBoot returns CLOCK_BOOTTIME as the initial time namespace has it, so that a daemon
// in a container and a shim outside it agree (time_namespaces(7)).
func sinceBoot() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	data, err := plainfile.Read("/proc/self/timens_offsets")
	if errors.Is(err, fs.ErrNotExist) { // a kernel without time namespaces
		return now.Nano(), nil
	}
	if err != nil {
		return 0, err
	}
	offset, err := boottimeOffset(string(data))
	return now.Nano() - offset, err
}

// private checks that nobody but this process' user and root can write to a directory.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory", ErrShared, dir)
	case info.Mode()&0o022 != 0:
		return fmt.Errorf("%w: %s has the mode %v, want 0700", ErrShared, dir, info.Mode())
	case owner != 0 && int(owner) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d", ErrShared, dir, owner)
	}
	return nil
}
