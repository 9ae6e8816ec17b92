package netconf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// sight is how sources looked, and everything on the way to them: directories, symbolic
// links and files by their path without links. Nil is something that did not exist.
//
// A comparison of two finds changes that were not announced, except for a file that was
// changed in place, to content of the same length, within the clock tick of the file system.
type sight struct {
	watch func(dir string) error
	seen  map[string]os.FileInfo
	whole map[string]bool // directories of which every entry matters
	// watched are the directories on the way. It is false for those that may not be read,
	// such as another user's home: their entries rarely change, and a comparison finds it.
	watched map[string]bool
}

// lookAt looks at sources. It has each directory on the way watched before it looks at the
// entries, so that a later change of what was seen is announced.
func lookAt(sources func() (files, dirs []string), watch func(dir string) error) (*sight, error) {
	s := &sight{watch, map[string]os.FileInfo{}, map[string]bool{}, map[string]bool{}}
	files, dirs := sources()
	for _, file := range files {
		if _, err := s.walk(file); err != nil {
			return nil, err
		}
	}
	for _, dir := range dirs {
		end, err := s.walk(dir)
		if err == nil && end != "" {
			err = s.all(end, true)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// all looks at all entries of a directory: the files, wherever symbolic links lead, and
// the subdirectories, in which networks have their plugins' files.
func (s *sight) all(dir string, below bool) error {
	if err := s.enter(dir); err != nil {
		return err
	}
	s.whole[dir] = true
	if !s.watched[dir] {
		return fmt.Errorf("%s: %w", dir, fs.ErrPermission)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return absent(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if e.Type().IsRegular() {
			s.seen[path], _ = os.Lstat(path) // nil if it is gone
			continue
		}
		end, err := s.walk(path)
		if info := s.seen[end]; err == nil && below && info != nil && info.IsDir() {
			err = s.all(end, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// walk follows a path, and each symbolic link on the way, as far as they exist. It returns
// the path without links, or "" if nothing is there.
func (s *sight) walk(path string) (string, error) {
	end, err := plainfile.Walk(path, func(part string) (fs.FileInfo, error) {
		if err := s.enter(filepath.Dir(part)); err != nil {
			return nil, err
		}
		info, err := os.Lstat(part)
		s.seen[part] = info
		return info, err
	})
	if errors.Is(err, syscall.ELOOP) { // as if it did not exist
		err = nil
	}
	return end, absent(err)
}

// enter has a directory watched.
func (s *sight) enter(dir string) error {
	if _, known := s.watched[dir]; known {
		return nil
	}
	err := s.watch(dir)
	s.watched[dir] = !errors.Is(err, fs.ErrPermission)
	if s.watched[dir] && absent(err) != nil {
		return fmt.Errorf("%s: %w", dir, err)
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

// includes reports whether an announcement of that name is about something on the way.
func (s *sight) includes(name string) bool {
	_, seen := s.seen[name]
	return seen || s.whole[filepath.Dir(name)]
}

// same compares directories by identity alone: their entries are compared too.
func (s *sight) same(o *sight) bool {
	return maps.EqualFunc(s.seen, o.seen, func(a, b os.FileInfo) bool {
		if a == nil || b == nil {
			return a == b
		}
		return os.SameFile(a, b) && (a.IsDir() || a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime()))
	})
}
