package perm

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MissingCapabilities returns the names of the capabilities(7) that the calling thread lacks.
// Plugins need CAP_NET_ADMIN in the network namespace in which they run, and
// CAP_SYS_ADMIN to enter the container's. A process in its own user namespace has both,
// but they do not apply to the host's network namespace.
func MissingCapabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &has[0]); err != nil {
		return nil, fmt.Errorf("capget: %w", err)
	}
	var lacks []string
	for _, c := range []struct {
		bit  uint
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if has[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	return lacks, nil
}

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
