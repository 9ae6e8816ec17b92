package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
)

// Files remembers what a reader has made of the files in a directory, and has those read
// again that have changed. Other processes may write them.
//
//	Each ─► few files: list them, compare times ─┐
//	     └► many files: what has changed? ───────┴► read ─► values
//
// The kernel queues a change before the system call that makes it returns: of a file that
// was there before Each began, Each has the value.
type Files[V any] struct {
	dir, ext string
	open     func(dir string) (*Watch, error)

	mu    sync.Mutex // so that of several callers only one reads a new file
	known map[string]file[V]
	watch *Watch
	at    fs.FileInfo // the directory that is watched
	lists int         // how often it was listed
}

// Reader reads a file. If the value is not sure, the file is read again by the next call.
type Reader[V any] func(name string) (value V, sure bool)

type file[V any] struct {
	info    fs.FileInfo // before it was read
	value   V
	sure    bool
	settled bool // its time says whether it has changed
}

// Changes are the files that have changed.
type Changes struct {
	Names []string // each once, in the order of the first change
	// Lost means that other files may have changed as well: there were too many changes,
	// or the directory has come, gone, or was replaced.
	Lost bool
}

// few is the number of files up to which a watch does not pay: to list and read them takes
// some microseconds, and a watch is one of the user's few inotify instances. Beside more, a
// process that asks for the first time has no watch either: the kernel takes ten milliseconds
// to close one, at the end of a process too.
const few = 8

// settled is the age at which a file's time says that it has not changed since: two
// changes within one tick of a file system's clock, of up to two seconds, have one time.
const settled = 3 * time.Second

// NewFiles returns the files of a directory whose names have an extension. It touches
// nothing. open watches the directory; it is nil if nobody is to.
func NewFiles[V any](dir, ext string, open func(dir string) (*Watch, error)) *Files[V] {
	return &Files[V]{dir: dir, ext: ext, open: open}
}

// Each calls found with the value of each file, in no order. Names are without the
// extension. read may be called from several goroutines at once.
func (f *Files[V]) Each(read Reader[V], found func(name string, value V)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.follow(read) {
		if err := f.compare(read); err != nil {
			return err
		}
		f.follow(read) // what has changed in the meantime
	}
	for name, one := range f.known {
		found(name, one.value)
	}
	return nil
}

// follow reads the files that have changed, and reports whether all others are known. A
// watch that may have missed a change is given up.
func (f *Files[V]) follow(read Reader[V]) bool {
	if f.watch == nil {
		return false
	}
	changes, err := f.watch.Now()
	at, serr := os.Stat(f.dir) // another may be mounted there by now
	if err != nil || serr != nil || changes.Lost || !os.SameFile(at, f.at) {
		_ = f.watch.Close() // it was only read
		f.watch = nil
		return false
	}
	names := f.named(changes.Names)
	for name, one := range f.known {
		if !one.sure {
			names = append(names, name)
		}
	}
	for _, name := range names {
		f.set(name, f.read(name, read))
	}
	return true
}

// compare lists the files, and reads those that may have changed. From the second time on
// it begins to watch many before it lists them, so that it hears of all later changes.
func (f *Files[V]) compare(read Reader[V]) error {
	names, err := f.list()
	if err == nil && f.lists > 1 && len(names) > few && f.begin() {
		names, err = f.list()
	}
	if err != nil {
		return err
	}
	files := make([]*file[V], len(names))
	thread.Each(len(names), runtime.GOMAXPROCS(0), func(i int) {
		before, ok := f.known[names[i]]
		if ok && before.sure && before.settled {
			if now, err := os.Lstat(f.path(names[i])); err == nil && sameFile(before.info, now) {
				files[i] = &before
				return
			}
		}
		files[i] = f.read(names[i], read)
	})
	f.known = make(map[string]file[V], len(names))
	for i, name := range names {
		f.set(name, files[i])
	}
	return nil
}

func (f *Files[V]) begin() bool {
	if f.open == nil {
		return false
	}
	at, err := os.Stat(f.dir)
	if err != nil {
		return false
	}
	w, err := f.open(f.dir)
	f.watch, f.at = w, at
	return err == nil
}

// list returns the names of all files. A file that is replaced while a directory is
// read may be missing in the list, so one that was known is listed all the same, and a
// directory that changes is read again, at most a few times.
func (f *Files[V]) list() (names []string, err error) {
	f.lists++
	for name := range f.known {
		names = append(names, name)
	}
	for range 4 {
		before, err := os.Stat(f.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		found, err := namesIn(f.dir)
		if err != nil {
			return nil, err
		}
		names = append(names, f.named(found)...)
		if after, err := os.Stat(f.dir); err == nil && after.ModTime().Equal(before.ModTime()) {
			break
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func namesIn(dir string) (names []string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = joined.Errors(err, d.Close()) }()
	return d.Readdirnames(-1)
}

// named returns the names that have the extension, without it.
func (f *Files[V]) named(all []string) (names []string) {
	for _, name := range all {
		if name, ok := strings.CutSuffix(name, f.ext); ok {
			names = append(names, name)
		}
	}
	return names
}

// read returns nil if the file is gone.
func (f *Files[V]) read(name string, read Reader[V]) *file[V] {
	info, err := os.Lstat(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	value, sure := read(name)
	return &file[V]{info, value, sure && err == nil, err == nil && time.Since(info.ModTime()) > settled}
}

func (f *Files[V]) set(name string, now *file[V]) {
	if now == nil {
		delete(f.known, name)
		return
	}
	if f.known == nil {
		f.known = make(map[string]file[V])
	}
	f.known[name] = *now
}

func (f *Files[V]) path(name string) string { return filepath.Join(f.dir, name+f.ext) }

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
