package ipamdir

import (
	"os"

	"golang.org/x/sys/windows"
)

// lockWhole waits for the exclusive lock of a file's first byte, the one that
// host-local locks.
func lockWhole(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
}
