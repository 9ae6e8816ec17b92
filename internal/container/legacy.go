package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Versions before 2027 kept, beside the locks, a copy of what they knew of libcni's cache
// ("cachedports") and a mark for each network that had its first ADD ("networks"), and beside
// the records a second name of each that has ports ("ports"). They do
// without them: one that still runs makes them again. This file may go in 2028.

// formerFiles returns the paths of what only earlier versions use, what is in a directory
// before the directory.
func formerFiles(own, records string) (paths []string, err error) {
	for _, dir := range []string{filepath.Join(own, "networks"), filepath.Join(records, "ports")} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
		paths = append(paths, dir)
	}
	if path := filepath.Join(own, "cachedports"); exists(path) {
		paths = append(paths, path)
	}
	return paths, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
