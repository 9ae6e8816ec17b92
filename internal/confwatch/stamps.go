package confwatch

import (
	"maps"
	"os"
	"path/filepath"
)

// stamps are how sources looked, and the directories that are watched for them; nil if
// there is nothing. A comparison of two finds changes that were not announced, except for
// a file that was changed in place, to content of the same length, within the clock tick
// of the file system.
type stamps map[string]os.FileInfo

// stampsOf looks at the sources, and at the directories that are watched for them.
func stampsOf(sources []Source, watched places) stamps {
	s := stamps{}
	for dir := range watched {
		s.take(dir)
	}
	for _, src := range sources {
		s.take(src.Path)
		if src.Dir {
			s.takeAll(src.Path, true)
		}
	}
	return s
}

// take takes one file or directory, and reports whether it is a directory.
func (s stamps) take(path string) bool {
	fi, err := os.Stat(path)
	if err != nil {
		fi = nil
	}
	s[path] = fi
	return fi != nil && fi.IsDir()
}

// takeAll takes the files of a directory, and those of its subdirectories.
func (s stamps) takeAll(dir string, below bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the directory's own stamp says as much
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); s.take(path) && below {
			s.takeAll(path, false)
		}
	}
}

func (s stamps) same(o stamps) bool { return maps.EqualFunc(s, o, same) }

// same compares directories by identity alone: their entries have stamps of their own.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && (a.IsDir() || a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime()))
}
