//go:build !linux

package plainfile

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// Open is os.OpenFile.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, perm)
}

// Read is os.ReadFile for regular files of at most [Longest] bytes.
func Read(path string) ([]byte, error) { return ReadUpTo(path, Longest) }

// ReadUpTo is Read with a bound of the caller's.
func ReadUpTo(path string, longest int) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		if err = tooSpecial(info, longest); err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
	}
	return os.ReadFile(path)
}

func tooSpecial(info fs.FileInfo, longest int) error {
	switch {
	case !info.Mode().IsRegular():
		return ErrNotRegular
	case info.Size() > int64(longest):
		return ErrTooLong
	}
	return nil
}

// Now is the time that a file which is made now is given.
func Now() time.Time { return time.Now() }

// Stamp is Now.
func Stamp(string) (time.Time, error) { return Now(), nil }

// Write is os.WriteFile.
func Write(path string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(path, data, perm)
}

// Append writes data to the end of a file, in one write. The file must be there.
func Append(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// Rename is os.Rename.
func Rename(from, to string) error { return os.Rename(from, to) }

// SyncData is f.Sync.
func SyncData(f *os.File) error { return f.Sync() }
