package confwatch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// places are the directories to watch, by path without symbolic links, and the entries
// that matter in each; nil is all of them.
type places map[string]map[string]bool

// maxLinks is how many symbolic links the kernel follows in a path.
const maxLinks = 40

// finder finds the directories on the way to sources. Each is watched before its
// entries are read, so that a later change of what was read is announced.
type finder struct {
	watch  func(dir string) error
	places places
	// unwatched are directories that may not be read, such as another user's home.
	// Their entries rarely change, and a comparison finds it.
	unwatched map[string]bool
}

// find watches the directories on the way to the sources.
func find(sources []Source, watch func(dir string) error) (places, error) {
	f := &finder{watch: watch, places: places{}, unwatched: map[string]bool{}}
	for _, s := range sources {
		end, err := f.walk(s.Path)
		if err != nil {
			return nil, err
		}
		if !s.Dir || end == "" {
			continue
		}
		if err := f.whole(end, true); err != nil {
			return nil, err
		}
	}
	return f.places, nil
}

// whole watches all entries of a directory: the files, wherever symbolic links lead,
// and the subdirectories, in which networks have their plugins' files.
func (f *finder) whole(dir string, below bool) error {
	if err := f.add(dir, ""); err != nil {
		return err
	}
	if f.unwatched[dir] {
		return fmt.Errorf("%s: %w", dir, fs.ErrPermission)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return absent(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Type().IsRegular() {
			continue
		}
		end, err := f.walk(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		if end == "" || !below {
			continue
		}
		if fi, err := os.Stat(end); err == nil && fi.IsDir() {
			if err := f.whole(end, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// walk watches the directories on a path, and those on the way of each symbolic link,
// as far as they exist. It returns the path without links, or "" if nothing is there.
func (f *finder) walk(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	root := filepath.VolumeName(path) + string(filepath.Separator)
	at, rest := root, strings.TrimPrefix(path, root)
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, string(filepath.Separator))
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		if err := f.add(at, name); err != nil {
			return "", err
		}
		next := filepath.Join(at, name)
		fi, err := os.Lstat(next)
		if err != nil {
			return "", absent(err)
		}
		if fi.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", absent(err)
		}
		if links++; links > maxLinks {
			return "", nil // as if it did not exist
		}
		if filepath.IsAbs(target) {
			at = filepath.VolumeName(target) + string(filepath.Separator)
			target = strings.TrimPrefix(target, at)
		}
		rest = target + string(filepath.Separator) + rest
	}
	return at, nil
}

// add watches a directory for changes of an entry, or of all if the name is empty.
func (f *finder) add(dir, name string) error {
	children, known := f.places[dir]
	if !known {
		switch err := f.watch(dir); {
		case errors.Is(err, fs.ErrPermission):
			f.unwatched[dir] = true
		case err != nil && absent(err) != nil:
			return fmt.Errorf("%s: %w", dir, err)
		}
		children = map[string]bool{}
		f.places[dir] = children
	}
	switch {
	case name == "":
		f.places[dir] = nil
	case children != nil:
		children[name] = true
	}
	return nil
}

// absent returns nil if the error means that a path does not exist: the directory above,
// which is watched, announces when that changes.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}
