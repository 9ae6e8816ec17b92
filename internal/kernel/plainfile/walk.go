package plainfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// mostLinks limits the symbolic links in a path, as in the kernel (MAXSYMLINKS).
const mostLinks = 40

// Walk follows a path as the kernel does, through each symbolic link on the way, and returns
// the path without links. It calls look, which returns what os.Lstat does, or an error, with
// the root directory and then with each part of the way, links included.
func Walk(path string, look func(part string) (fs.FileInfo, error)) (end string, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return "", err
	}
	at, rest := cutRoot(path)
	if _, err := look(at); err != nil {
		return "", err
	}
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, string(filepath.Separator))
		next := filepath.Join(at, name)
		if name == "" || name == "." || name == ".." {
			at = next
			continue
		}
		info, err := look(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > mostLinks {
			return "", &fs.PathError{Op: "check", Path: next, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at, target = cutRoot(target)
		}
		rest = target + string(filepath.Separator) + rest
	}
	return at, nil
}

// cutRoot splits an absolute path into its root directory and the rest.
func cutRoot(path string) (root, rest string) {
	root = filepath.VolumeName(path) + string(filepath.Separator)
	return root, strings.TrimPrefix(path, root)
}
