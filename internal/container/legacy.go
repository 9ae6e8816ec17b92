package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Versions before 2027 kept, beside the locks, a copy of what they knew of libcni's cache
// ("cachedports") and a mark for each network that had its first ADD ("networks"). They do
// without them: one that still runs makes them again. This file may go in 2028.

// formerFiles returns the paths of what only earlier versions use, what is in a directory
// before the directory.
func formerFiles(dir string) (paths []string, err error) {
	marks := filepath.Join(dir, "networks")
	entries, err := os.ReadDir(marks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		paths = append(paths, filepath.Join(marks, e.Name()))
	}
	for _, path := range []string{marks, filepath.Join(dir, "cachedports")} {
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths, nil
}
