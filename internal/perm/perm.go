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
var ErrInsecure = errors.New("writable by every user")

// Check refuses a file that every user may write, and one that lies in a
// directory where every user may put another in its place. fi is the file's
// own (symbolic links followed), path where it was found. A directory with the
// sticky bit passes: there only the owner replaces a file.
//
// On Windows the mode bits say nothing about access, so Check accepts.
func Check(path string, fi fs.FileInfo) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	if fi.Mode()&worldWritable != 0 {
		return fmt.Errorf("%s (mode %04o) is %w: run chmod o-w on it, or allow it by option",
			path, fi.Mode().Perm(), ErrInsecure)
	}
	return checkDir(path)
}

const worldWritable = 0o002

// checkDir looks at the directory the name stands in and, where the name is a
// symbolic link, at the one the file itself stands in: either lets a stranger
// choose what is read.
func checkDir(path string) error {
	dirs := []string{filepath.Dir(path)}
	if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(real) != dirs[0] {
		dirs = append(dirs, filepath.Dir(real))
	}
	for _, dir := range dirs {
		fi, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("who may write %s: %w", dir, err)
		}
		if fi.Mode()&worldWritable != 0 && fi.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("%s is in %s (mode %04o), which is %w: run chmod o-w on it, or allow it by option",
				path, dir, fi.Mode().Perm(), ErrInsecure)
		}
	}
	return nil
}
