package plainfile

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Writable returns an error unless files can be made in a directory. If it does not
// exist, it asks whether the directory can be made: the directory above it decides. It
// changes nothing, and so does not see a quota.
func Writable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		var is unix.Stat_t
		err := unix.Stat(at, &is)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err == nil && is.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ENOTDIR
		}
		if err == nil {
			err = unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		}
		var room unix.Statfs_t
		if err == nil {
			err = unix.Statfs(at, &room)
		}
		if err == nil && (room.Blocks > 0 && room.Bavail == 0 || room.Files > 0 && room.Ffree == 0) {
			err = unix.ENOSPC
		}
		if err != nil {
			return &fs.PathError{Op: "write to", Path: dir, Err: err}
		}
		return nil
	}
}
