//go:build !linux

package plainfile

import (
	"errors"
	"io/fs"
	"os"
)

// Open is os.OpenFile.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag, perm)
}

// Read is os.ReadFile.
func Read(path string) ([]byte, error) { return os.ReadFile(path) }

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
