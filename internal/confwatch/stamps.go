package confwatch

import (
	"maps"
	"os"
	"path/filepath"
)

// stamps are how sources looked. A comparison of two finds changes that were not
// announced, except for a file that was changed in place, to content of the same length,
// within the clock tick of the file system.
type stamps struct {
	dirs  map[string]os.FileInfo // watched; nil if there is none
	files map[string]os.FileInfo
}

// stampsOf looks at the sources, and at the directories that are watched for them.
func stampsOf(sources []Source, watched places) stamps {
	s := stamps{map[string]os.FileInfo{}, map[string]os.FileInfo{}}
	for dir := range watched {
		s.dirs[dir] = stat(dir)
	}
	for _, src := range sources {
		if src.Dir {
			s.dirs[src.Path] = stat(src.Path)
			s.takeAll(src.Path, true)
		} else {
			s.files[src.Path] = stat(src.Path)
		}
	}
	return s
}

func stat(path string) os.FileInfo {
	fi, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return fi
}

// takeAll takes the files of a directory, and those of its subdirectories.
func (s stamps) takeAll(dir string, below bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the directory's own stamp says as much
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		fi := stat(path)
		if fi == nil || !fi.IsDir() {
			s.files[path] = fi
			continue
		}
		s.dirs[path] = fi
		if below {
			s.takeAll(path, false)
		}
	}
}

func (s stamps) same(o stamps) bool {
	return maps.EqualFunc(s.dirs, o.dirs, sameFile) && maps.EqualFunc(s.files, o.files, sameContent)
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b)
}

func sameContent(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}
