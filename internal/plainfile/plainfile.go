// Package plainfile opens and reads files of the disk and of /proc, which are
// always ready. Package os asks the poller first whether it could wait for them:
// that is five calls of the kernel for each file, more than what is done with a
// file of a few hundred bytes.
//
// The errors are those of package os, and two more for paths that anybody may
// have put something else at: no file keeps a caller waiting.
package plainfile

import "errors"

// ErrNotRegular: there is a FIFO, a socket or a device at the path.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLong: the file has more bytes than the reader accepts.
var ErrTooLong = errors.New("file is too long")

// Longest is how long a file may be that is read. The longest that have been
// seen, the state of ten thousand containers in one file, are some mebibytes.
const Longest = 64 << 20
