package record

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/plainfile"
)

// ledgerSize is the length, four thousand attachments and more, from which it
// pays to look for settled attachments.
const ledgerSize = 1 << 20

// Long reports whether the ledger should be compacted, because it has grown past
// another multiple of ledgerSize.
func (l *Ledger) Long() bool { return l.long.Load() }

// Compact drops those of the gone attachments that settled returns. Others may
// add lines meanwhile. If another process is compacting the ledger, Compact does
// nothing.
func (l *Ledger) Compact(settled func(gone map[Key]Known) []Key) error {
	return wrapLedger(l.compact(false, func(known map[Key]Known) []Key {
		gone := make(map[Key]Known)
		for key, k := range known {
			if k.Gone {
				gone[key] = k
			}
		}
		return settled(gone)
	}))
}

// Settle drops these attachments and takes over the lines of earlier versions.
// No Add may be in progress.
func (l *Ledger) Settle(keys []Key) error {
	return wrapLedger(l.compact(true, func(map[Key]Known) []Key { return keys }))
}

// compact replaces the ledger with a file of the attachments that are not
// settled. If no process can be writing to the files of earlier versions, it
// replaces those too.
//
// It blocks no writer. A writer can add a line to the old file until the new one
// is in place; later writers notice the new file and write again. So the old
// file keeps a name and is read as part of the ledger until all its lines are
// known to be in the new one. After a crash at any moment, each line is in at
// least one file.
func (l *Ledger) compact(alone bool, settled func(map[Key]Known) []Key) error {
	l.long.Store(false)
	f, err := plainfile.Open(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // gives the lock back
	if locked, err := tryLock(f); !locked || err != nil {
		return err
	}
	if current, err := l.isCurrent(f, 0); !current || err != nil {
		return err
	}
	if err := l.keepPrevious(); err != nil {
		return err
	}
	known, sources, err := l.read(alone)
	if err != nil {
		return err
	}
	for _, key := range settled(known) {
		delete(known, key)
	}
	if alone || !l.hasLegacy() {
		maps.DeleteFunc(known, func(_ Key, k Known) bool { return k.released })
	}
	if err := l.Fsync(f); err != nil {
		return err
	}
	next, err := l.replace(known)
	if err != nil {
		return err
	}
	return errors.Join(l.dropRead(sources), next.Close())
}

// hasLegacy reports whether files of earlier versions exist or may exist. They
// can name an attachment that was released since.
func (l *Ledger) hasLegacy() bool {
	for _, path := range []string{l.legacy, l.legacy + ".old"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// keepPrevious gives the ledger a second name.
func (l *Ledger) keepPrevious() error {
	previous, err := l.previous()
	if err != nil {
		return err
	}
	number := 0
	if len(previous) > 0 {
		number = l.number(previous[len(previous)-1]) + 1
	}
	return os.Link(l.path, l.path+prevExt+fmt.Sprint(number))
}

// previous returns the earlier files of the ledger, in order.
func (l *Ledger) previous() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if ignoreMissing(err) != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(l.path)+prevExt) {
			paths = append(paths, filepath.Join(filepath.Dir(l.path), e.Name()))
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return l.number(a) - l.number(b) })
	return paths, nil
}

func (l *Ledger) number(path string) (n int) {
	_, _ = fmt.Sscan(strings.TrimPrefix(path, l.path+prevExt), &n) // a stray file counts as the first
	return n
}

// replace rewrites the ledger durably. It returns the new file locked: another
// process that compacted it now would miss some of the earlier files.
func (l *Ledger) replace(known map[Key]Known) (*os.File, error) {
	var lines []Line
	for key, k := range known {
		lines = append(lines, k.lines(key)...)
	}
	data, err := encodeLines(lines)
	if err != nil {
		return nil, err
	}
	tmp := l.path + tmpExt
	f, err := plainfile.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, lerr := tryLock(f)
	_, err = f.Write(data)
	if err = errors.Join(lerr, err, l.Fsync(f)); err == nil {
		err = os.Rename(tmp, l.path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), remove(tmp))
	}
	if err := syncDir(filepath.Dir(l.path)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// dropRead deletes the files whose lines are all in the new one. If one of them
// has grown since it was read, all stay until the next time, because a line of
// one may end an attachment of another. A crash in between brings back only
// attachments that are gone, and GC looks for those once more.
func (l *Ledger) dropRead(sources []source) error {
	sources = slices.DeleteFunc(sources, func(s source) bool { return s.path == l.path })
	for _, s := range sources {
		info, err := os.Lstat(s.path)
		if ignoreMissing(err) != nil {
			return err
		}
		if err == nil && info.Size() != s.size {
			return nil
		}
	}
	var errs []error
	for _, s := range sources {
		errs = append(errs, remove(s.path))
	}
	return errors.Join(errs...)
}
