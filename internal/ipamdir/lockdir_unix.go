//go:build unix

package ipamdir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockWhole waits for the exclusive flock(2) of a file.
func lockWhole(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
