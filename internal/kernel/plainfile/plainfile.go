// Package plainfile opens, reads and writes files at paths where others may have
// put a FIFO, a socket or a device. It returns an error for these, so that no
// file keeps a caller waiting. [Replace] replaces a file in one step.
package plainfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// ErrNotRegular: there is a FIFO, a socket or a device at the path.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLong: the file has more bytes than the reader accepts.
var ErrTooLong = errors.New("file is too long")

// Longest is the length in bytes of the longest file that Read accepts. The
// longest seen, with the state of ten thousand containers, have some mebibytes.
const Longest = 64 << 20

// Open is os.OpenFile for regular files and directories. Anything else is an
// [ErrNotRegular].
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	// Without O_NONBLOCK, open waits for the other end of a FIFO.
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK|syscall.O_NOCTTY, perm)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		return nil, joined.Errors(err, f.Close())
	}
	return f, nil
}

// Read is os.ReadFile for files of at most [Longest] bytes.
func Read(path string) ([]byte, error) { return ReadUpTo(path, Longest) }

// ReadUpTo is Read with the caller's limit. A longer file is an [ErrTooLong].
func ReadUpTo(path string, longest int) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(longest)+1))
	if err != nil {
		return nil, err
	}
	if len(data) > longest {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrTooLong}
	}
	return data, nil
}

// Write is os.WriteFile.
func Write(path string, data []byte, perm fs.FileMode) error {
	return write(path, os.O_CREATE|os.O_TRUNC, perm, data)
}

// Append writes data to the end of a file, in one write. The file must exist.
func Append(path string, data []byte) error { return write(path, os.O_APPEND, 0, data) }

func write(path string, flag int, perm fs.FileMode, data []byte) error {
	f, err := Open(path, os.O_WRONLY|flag, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return joined.Errors(err, f.Close())
}
