package plainfile

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the earliest possible time of a file made now: the time of the
// kernel's last tick. From Linux 6.13 on the file's time can be later; see
// [Stamp].
func Now() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &t); err != nil {
		return time.Now()
	}
	return time.Unix(t.Unix())
}

// Stamp sets a file's time to that of a file made now, and returns it. No file
// made before has a later time, and no file made afterwards has an earlier one,
// on any file system of the same type. From Linux 6.13 on, the time of a file is
// finer than the tick if the file was queried in between, and the times of other
// files follow.
func Stamp(path string) (time.Time, error) {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return time.Time{}, &fs.PathError{Op: "utimensat", Path: path, Err: err}
	}
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}
