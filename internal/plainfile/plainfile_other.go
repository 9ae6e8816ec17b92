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

// Append writes data to the end of the file, in one write, and creates the file
// if it is missing.
func Append(path string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
