package portindex

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// inodes calls found for each name in a directory but "." and "..". Unlike os.ReadDir
// it gets the inodes with the names, and so needs no further system call for each file.
func inodes(dir string, found func(name string, inode uint64)) (err error) {
	d, err := plainfile.Open(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var all dirents
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(int(d.Fd()), buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n > 0:
			err = all.read(buf[:n])
		}
		if err != nil {
			return &fs.PathError{Op: "getdents", Path: dir, Err: err}
		}
		if n == 0 {
			break
		}
	}
	names, from := string(all.names), 0 // one string for all
	for _, e := range all.found {
		found(names[from:e.end], e.inode)
		from = e.end
	}
	return nil
}

// dirents are entries of a directory.
type dirents struct {
	names []byte // one after the other
	found []struct {
		end   int // of the name in names
		inode uint64
	}
}

// read adds entries as getdents64(2) returns them, a struct linux_dirent64 each: the
// inode, an offset of 8 bytes, the length of the entry, a type, and the name.
func (all *dirents) read(data []byte) error {
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
		if string(name) != "." && string(name) != ".." { // compared without an allocation
			all.names = append(all.names, name...)
			all.found = append(all.found, struct {
				end   int
				inode uint64
			}{len(all.names), binary.NativeEndian.Uint64(data)})
		}
		data = data[size:]
	}
	return nil
}

// link gives a file another name.
func link(file, path string) error {
	if err := unix.Linkat(unix.AT_FDCWD, file, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.LinkError{Op: "link", Old: file, New: path, Err: err}
	}
	return nil
}
