package plainfile

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Open is os.OpenFile, but never waits for the other end of a FIFO: that is an
// error at the latest when it is used. What it returns blocks a thread when it
// waits, as files of the disk do anyway.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	fd, err := open(path, flag, perm)
	if err != nil {
		return nil, err
	}
	// Package os would ask the poller for a descriptor that does not block.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flag&unix.O_APPEND); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: path, Err: err}, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), path), nil
}

func open(path string, flag int, perm fs.FileMode) (int, error) {
	for {
		fd, err := unix.Open(path, flag|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_LARGEFILE, uint32(perm.Perm()))
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// most is more than most files here hold, so that they are read at once.
const most = 2048

// Read is os.ReadFile, but never waits: a FIFO, a socket or a device is
// [ErrNotRegular]. A file of more than [Longest] bytes is [ErrTooLong].
func Read(path string) ([]byte, error) { return ReadUpTo(path, Longest) }

// ReadUpTo is Read with a bound of the caller's.
func ReadUpTo(path string, longest int) ([]byte, error) {
	fd, err := open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	data, err := readRegular(fd, longest)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

func readRegular(fd, longest int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR: // of a directory the kernel says so
		return readAll(fd, longest)
	}
	return nil, ErrNotRegular
}

func readAll(fd, longest int) ([]byte, error) {
	data := make([]byte, 0, most)
	for {
		if len(data) > longest {
			return nil, ErrTooLong
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := unix.Read(fd, data[len(data):cap(data)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return data, nil
		default:
			data = data[:len(data)+n]
		}
	}
}

// Write is os.WriteFile.
func Write(path string, data []byte, perm fs.FileMode) error {
	return writeTo(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm, data)
}

// Append writes data to the end of a file, in one write. The file must be there.
func Append(path string, data []byte) error {
	return writeTo(path, os.O_WRONLY|os.O_APPEND, 0, data)
}

func writeTo(path string, flag int, perm fs.FileMode, data []byte) error {
	fd, err := open(path, flag, perm)
	if err != nil {
		return err
	}
	if err = errors.Join(writeRegular(fd, data), unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// Rename is os.Rename for files, without a look at what is in the way.
func Rename(from, to string) error {
	for {
		err := unix.Rename(from, to)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		}
	}
}

// SyncData is f.Sync, but leaves out what is not needed to read the data again,
// such as when it was written.
func SyncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "sync", Path: f.Name(), Err: err}
		}
	}
}

func writeRegular(fd int, data []byte) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ErrNotRegular // to write to a FIFO that is full would wait, or fail half way
	}
	return write(fd, data)
}

// Now returns the earliest time that a file made now is given: the time of the
// kernel's last tick. From Linux 6.13 on the file's time can be later; see
// [Stamp].
func Now() time.Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &t); err != nil {
		return time.Now()
	}
	return time.Unix(t.Unix())
}

// Stamp gives a file the time of a file that is made now, and returns that
// time. No file made before has a later time, and no file made afterwards has
// an earlier one, on any file system of the same type. From Linux 6.13 on a
// file's time is finer than the tick if somebody has looked at it in between,
// and the times of other files follow.
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

// write goes on behind a write that was cut short, as on a disk that has become
// full, whose error is that of the next one.
func write(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}
