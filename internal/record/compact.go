package record

import (
	"errors"
	"fmt"
	"io"
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
// file keeps a name, and is read as part of the ledger, until the lines that came
// meanwhile are in the new one as well. After a crash at any moment, each line is
// in at least one file.
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
	second, err := l.keepPrevious()
	if err != nil {
		return err
	}
	legacy := !alone && l.hasLegacy()
	sources, next, err := l.rewrite(f, alone, legacy, settled)
	if next == nil {
		return errors.Join(err, remove(second)) // of the file that is still the ledger
	}
	if err == nil {
		err = l.finish(f, next, sources, legacy)
	}
	return errors.Join(err, next.Close())
}

// rewrite reads the ledger and puts a new file in its place, which it returns as
// replace does. With legacy, there are files of earlier versions that are not
// read.
func (l *Ledger) rewrite(f *os.File, alone, legacy bool, settled func(map[Key]Known) []Key) ([]source, *os.File, error) {
	known, sources, err := l.read(alone)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range settled(known) {
		delete(known, key)
	}
	if !legacy {
		maps.DeleteFunc(known, func(_ Key, k Known) bool { return k.released })
	}
	if err := l.Fsync(f); err != nil {
		return nil, nil, err
	}
	next, err := l.replace(known)
	return sources, next, err
}

// finish takes over the lines that came too late for next, and deletes the files
// that were read. What is taken over is read before the lines of earlier versions,
// which could then bring a released attachment back. So with legacy, late lines
// stay where they are until the next time.
func (l *Ledger) finish(f, next *os.File, sources []source, legacy bool) error {
	late, err := l.late(f, sources)
	if err != nil || legacy && len(late) > 0 {
		return err
	}
	if err := l.takeOver(next, late); err != nil {
		return err
	}
	return l.dropRead(sources)
}

// late returns the lines that were added to f, the ledger until it was replaced,
// after it was read. Whoever adds one from now on adds it to the new file too.
func (l *Ledger) late(f *os.File, sources []source) ([]Line, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var whole int64
	for _, s := range sources {
		if s.path == l.path {
			whole = s.whole
		}
	}
	data, err := io.ReadAll(io.NewSectionReader(f, whole, info.Size()-whole))
	if err != nil {
		return nil, err
	}
	return decodeLines(data), nil
}

// takeOver adds late lines durably to the new file. Others may have added lines
// to it already, which are later; the mark of a sum puts these before them.
func (l *Ledger) takeOver(next *os.File, late []Line) error {
	if len(late) == 0 {
		return nil
	}
	for i := range late {
		late[i].Sum = true
	}
	data, err := encodeLines(late)
	if err != nil {
		return err
	}
	if _, err := next.Write(append([]byte("\n"), data...)); err != nil {
		return err
	}
	return l.Fsync(next)
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

// keepPrevious gives the ledger a second name, and returns it.
func (l *Ledger) keepPrevious() (string, error) {
	previous, err := l.previous()
	if err != nil {
		return "", err
	}
	number := 0
	if len(previous) > 0 {
		number = l.number(previous[len(previous)-1]) + 1
	}
	second := l.path + prevExt + fmt.Sprint(number)
	return second, os.Link(l.path, second)
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
// process that compacted it now would miss some of the earlier files. The file is
// nil if the old one is still in place.
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
	f, err := plainfile.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
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
	return f, syncDir(filepath.Dir(l.path))
}

// dropRead deletes the files whose lines are all in the new one, the earliest
// first. If a file of an earlier version has grown since it was read, all stay
// until the next time, because a line of one may end an attachment of another. A
// crash in between brings back only attachments that are gone, and GC looks for
// those once more.
func (l *Ledger) dropRead(sources []source) error {
	sources = slices.DeleteFunc(sources, func(s source) bool { return s.path == l.path })
	for _, s := range sources {
		if strings.HasPrefix(s.path, l.path) {
			continue // its late lines were taken over
		}
		info, err := os.Lstat(s.path)
		if ignoreMissing(err) != nil {
			return err
		}
		if err == nil && info.Size() != s.size {
			return nil
		}
	}
	for _, s := range sources {
		if err := remove(s.path); err != nil {
			return err // a later file may end what this one begins
		}
	}
	return nil
}
