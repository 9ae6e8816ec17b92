package portindex

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// inodes calls found for each name in a directory but "." and "..". Unlike os.ReadDir it gets the
// inodes with the names, and so needs no further system call for each file. A name is
// valid until found returns.
func inodes(dir string, found func(name []byte, inode uint64)) (err error) {
	d, err := plainfile.Open(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(int(d.Fd()), buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return &fs.PathError{Op: "getdents", Path: dir, Err: err}
		case n == 0:
			return nil
		}
		if err := eachDirent(buf[:n], found); err != nil {
			return &fs.PathError{Op: "getdents", Path: dir, Err: err}
		}
	}
}

// eachDirent reads entries as getdents64(2) returns them, a struct linux_dirent64 each:
// the inode, an offset of 8 bytes, the length of the entry, a type, and the name.
func eachDirent(data []byte, found func(name []byte, inode uint64)) error {
	const head = 19
	for len(data) > 0 {
		if len(data) < head {
			return unix.EIO
		}
		size := int(binary.NativeEndian.Uint16(data[16:]))
		if size < head || size > len(data) {
			return unix.EIO
		}
		name, _, _ := bytes.Cut(data[head:size], []byte{0})
		if text := string(name); text != "." && text != ".." {
			found(name, binary.NativeEndian.Uint64(data))
		}
		data = data[size:]
	}
	return nil
}

// link gives an open file another name.
func link(f *os.File, path string) error {
	open := fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd())
	if err := unix.Linkat(unix.AT_FDCWD, open, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.LinkError{Op: "link", Old: f.Name(), New: path, Err: err}
	}
	return nil
}
