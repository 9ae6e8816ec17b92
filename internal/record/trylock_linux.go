package record

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks the file until it is closed, unless another process has it
// locked.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return err == nil, err
		}
	}
}
