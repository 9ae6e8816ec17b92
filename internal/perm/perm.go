// Package perm tells whether somebody else could have written what the
// runtime is about to trust: a configuration that decides which program runs
// as root, or that program itself.
package perm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// ErrInsecure is behind every refusal of this package.
var ErrInsecure = errors.New("writable by everybody")

// worldWritable is the write bit of everybody. The group's is no concern here:
// administrators let a group of theirs install plugins.
const worldWritable = 0o002

// Check refuses a file that every user of the machine may write, and one that
// lies in a directory where every user may put another in its place. If path is
// a symbolic link, the link's directory and the file's own both count. A
// directory with the sticky bit passes: there only the owner replaces a file.
//
// On Windows mode bits say nothing about access, so nothing is refused.
func Check(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	fi, err := os.Stat(file)
	if err != nil {
		return err
	}
	if fi.Mode()&worldWritable != 0 {
		return insecure(file, fi)
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(file)} {
		fi, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if fi.Mode()&worldWritable != 0 && fi.Mode()&fs.ModeSticky == 0 {
			return insecure(dir, fi)
		}
	}
	return nil
}

func insecure(path string, fi fs.FileInfo) error {
	return fmt.Errorf("%s (mode %v) is %w: run chmod o-w on it, or allow insecure files", path, fi.Mode(), ErrInsecure)
}
