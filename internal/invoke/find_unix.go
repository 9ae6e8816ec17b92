//go:build unix

package invoke

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writableByOthers is the write bit of everybody. The group's bit is no concern
// here: administrators let a group of theirs install plugins.
const writableByOthers = 0o002

func mayExecute(mode fs.FileMode) bool {
	return mode&0o111 != 0
}

// checkSecure refuses an executable that anybody could have put at path. If
// path is a symbolic link, that is a matter of the link's directory and of the
// target's.
func checkSecure(path string) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	if info.Mode()&writableByOthers != 0 {
		return insecure(target, info.Mode())
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(target)} {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&writableByOthers != 0 && info.Mode()&fs.ModeSticky == 0 {
			return insecure(dir, info.Mode())
		}
	}
	return nil
}

func insecure(path string, mode fs.FileMode) error {
	return fmt.Errorf("%w: %s (mode %v) is writable by everybody: run chmod o-w on it, or allow insecure plugins", ErrInsecure, path, mode)
}
