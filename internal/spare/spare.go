// Package spare keeps files that are of no use any more to be used again. On a
// file system without a journal, to create a file can take a quarter of a
// millisecond, the longer the more were deleted lately; to rename one takes
// ten microseconds.
//
// What a spare file holds is what it held last. Who takes one overwrites it.
package spare

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// most is how many files are kept in a directory. It is more than what is
// detached at once as a rule, and nothing to a disk.
const most = 128

// tries bounds how many names are tried before a file is created, or deleted,
// after all: which of them are taken is known from one's own calls only.
const tries = 4

const prefix = "spare."

// Files are those of a directory. They are shared with all others, in other
// processes too, who keep files there by this package: a file changes hands by
// being renamed, which one of them wins.
//
// Files is safe for concurrent use.
type Files struct {
	dir    string
	rename func(from, to string) error // fails if there is something at to

	mu sync.Mutex
	// Names, by what was the case when they were last tried; the next one last.
	full, untried, empty []int
}

// In returns the spare files of dir, on whose file system they can be used.
func In(dir string) *Files {
	f := &Files{dir: dir, rename: renameNew}
	for i := range most {
		f.untried = append(f.untried, most-1-i)
	}
	return f
}

// OfMounts returns the spare files of a directory of files that are mounted on,
// and that are unmounted in the calling mount namespace when they are given.
//
// In another one, such as a copy of it, one may still be mounted on. The kernel
// keeps that mount when a file is renamed, and takes it away when the name is
// removed. So here a file is given another name, and then loses the one it had.
func OfMounts(dir string) *Files {
	f := In(dir)
	f.rename = relink
	return f
}

func relink(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	if err := os.Remove(from); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// Is tells whether a file in such a directory is a spare one.
func Is(name string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	_, err := strconv.Atoi(number)
	return ok && err == nil
}

// Take renames a spare file to path, and tells whether it did: not if there is
// none, or if there is something at path already.
func (f *Files) Take(path string) bool {
	for range tries {
		slot, ok := f.pop(&f.full, &f.untried)
		if !ok {
			return false
		}
		switch err := f.rename(f.path(slot), path); {
		case err == nil:
			f.push(&f.empty, slot)
			return true
		case errors.Is(err, syscall.EXDEV):
			continue // something is mounted on it, by an earlier version
		case !errors.Is(err, fs.ErrNotExist):
			f.push(&f.full, slot) // who creates the file finds out what is wrong
			return false
		}
		f.push(&f.empty, slot)
	}
	return false
}

// Give makes a spare file of that at path, or deletes it if there are enough, or
// if the file system cannot do the one without the risk of deleting another's.
// Without a file the error is fs.ErrNotExist.
func (f *Files) Give(path string) error {
	for range tries {
		slot, ok := f.pop(&f.empty, &f.untried)
		if !ok {
			break
		}
		err := f.rename(path, f.path(slot))
		if err == nil {
			f.push(&f.full, slot)
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			f.push(&f.empty, slot)
			break
		}
		f.push(&f.full, slot)
	}
	return os.Remove(path)
}

func (f *Files) path(slot int) string { return filepath.Join(f.dir, prefix+strconv.Itoa(slot)) }

// pop takes the next name of the first list that has one.
func (f *Files) pop(lists ...*[]int) (slot int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, list := range lists {
		if n := len(*list); n > 0 {
			slot = (*list)[n-1]
			*list = (*list)[:n-1]
			return slot, true
		}
	}
	return 0, false
}

func (f *Files) push(list *[]int, slot int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*list = append(*list, slot)
}
