// Package delqueue keeps CNI DELs on disk that no daemon could be asked for. A shim puts
// them there, and the next daemon carries them out.
//
// A DEL may be carried out long after its caller has been told that it is done, when
// the container may have been attached anew. So an entry has the moment at which the DEL
// was asked for, and the identity of the container's namespace. [Entry.Ends] compares
// them with the attachment on record: only one that was begun before is ended.
//
// Each entry is a file of its own, with a checksum. It is complete and on the disk when
// [Queue.Put] returns. A process that is killed in Put leaves at most a file that [Queue.List]
// deletes later.
package delqueue

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

var (
	// ErrFull: the queue has as many entries or bytes as it may have.
	ErrFull = errors.New("the queue of DELs is full")
	// ErrShared: another user may write to the directory, and could have DELs of any
	// container carried out.
	ErrShared = errors.New("the queue of DELs is not private")
	// ErrBad: a file is not an entry.
	ErrBad = errors.New("damaged DEL in the queue")
	// ErrNewer: a later version has written the entry. It is left alone.
	ErrNewer = errors.New("DEL in the queue of a newer version")
	// ErrUnread: some files could not be read, or are not entries. The queue as a whole could.
	ErrUnread = errors.New("DELs in the queue could not be read")
)

// Limits of a queue. A node has some hundred containers, each with a few interfaces, and
// a DEL has some kilobytes.
const (
	MaxEntries = 10_000
	MaxBytes   = 64 << 20
	maxEntry   = 8 << 20 // of a file; a request's limit is 4 MiB, and base64 adds a third
)

const (
	entryExt   = ".del"
	newExt     = ".new"     // being written by an earlier version
	damagedExt = ".damaged" // set aside
)

// Queue is a directory of entries. Processes may use it at the same time.
type Queue struct {
	dir string
	// limits, and a function that is called before each step; tests change them.
	maxEntries int
	maxBytes   int64
	before     func(step string) error
}

// Open returns the queue in a directory. The first Put creates the directory.
func Open(dir string) *Queue {
	return &Queue{dir: dir, maxEntries: MaxEntries, maxBytes: MaxBytes, before: func(string) error { return nil }}
}

// Put adds an entry. When it returns nil, the entry survives a power cut. An entry of the
// same attachment that was put before is deleted, since this one does the same. Put waits
// for no other process.
//
// It fails with ErrFull and ErrShared.
func (q *Queue) Put(e *Entry) error {
	if err := q.put(e); err != nil {
		return fmt.Errorf("queue the DEL in %s: %w", q.dir, err)
	}
	return nil
}

func (q *Queue) put(e *Entry) error {
	data, err := encode(e)
	if err != nil {
		return err
	}
	if err := q.makeDir(); err != nil {
		return err
	}
	covered, err := q.room(e, int64(len(data)))
	if err != nil {
		return err
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	e.file = e.key() + "." + hex.EncodeToString(random[:]) + entryExt
	if err := q.add(e.file, data); err != nil {
		return err
	}
	for _, file := range covered {
		if q.before("remove covered") == nil {
			_ = q.remove(file) // one that stays is carried out too, or ends nothing any more
		}
	}
	return nil
}

// makeDir makes the directory durably, and checks who may write to it.
func (q *Queue) makeDir() error {
	err := q.before("make directory")
	if err == nil {
		err = private(q.dir)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(q.dir)
	err = joined.Errors(os.MkdirAll(parent, 0o755), ignore(os.Mkdir(q.dir, 0o700), fs.ErrExist))
	if err == nil {
		err = joined.Errors(q.before("sync parent"), plainfile.SyncDir(parent))
	}
	if err != nil {
		return err
	}
	return private(q.dir)
}

// room checks the limits, and returns the files of entries that e covers. Processes that
// put at the same time may exceed the limits by their number.
func (q *Queue) room(e *Entry, size int64) (covered []string, err error) {
	entries, err := os.ReadDir(q.dir)
	if err != nil {
		return nil, err
	}
	count := 0
	for _, d := range entries {
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // carried out meanwhile
		}
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(d.Name(), e.key()+".") && strings.HasSuffix(d.Name(), entryExt) {
			if old, err := q.read(d.Name()); err == nil && e.covers(old) {
				covered = append(covered, d.Name())
				continue
			}
		}
		count, size = count+1, size+min(info.Size(), maxEntry)
	}
	if count >= q.maxEntries || size > q.maxBytes {
		return nil, fmt.Errorf("%w: %d files, %d bytes", ErrFull, count, size)
	}
	return covered, nil
}

// add writes a new file, or leaves none.
func (q *Queue) add(file string, data []byte) error {
	if err := q.before("write"); err != nil {
		return err
	}
	if err := plainfile.Replace(filepath.Join(q.dir, file), data, 0o600); err != nil {
		return err
	}
	if err := joined.Errors(q.before("sync directory"), plainfile.SyncDir(q.dir)); err != nil {
		return joined.Errors(err, q.remove(file))
	}
	return nil
}

// Remove deletes an entry that List has returned, or that Put has put. It is no error if
// the entry is gone. After a power cut it may be back, and then matches no record.
func (q *Queue) Remove(e *Entry) error {
	if err := q.remove(e.file); err != nil {
		return fmt.Errorf("delete a DEL from the queue: %w", err)
	}
	return nil
}

func (q *Queue) remove(file string) error {
	return ignore(os.Remove(filepath.Join(q.dir, file)), fs.ErrNotExist)
}

// List returns the entries in the order in which they were asked for, those of earlier
// boots first. Files that were left half-written a minute ago or longer are deleted. A damaged
// entry is set aside under another name, once; a newer version's, and one that cannot be read,
// is left alone. An error that is ErrUnread lists all of these; the entries are valid
// nevertheless.
func (q *Queue) List() ([]*Entry, error) {
	err := private(q.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var files []os.DirEntry
	if err == nil {
		files, err = os.ReadDir(q.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("list the queue of DELs: %w", err)
	}
	var all []*Entry
	var errs []error
	for _, d := range files {
		switch ext := filepath.Ext(d.Name()); {
		case ext == newExt || strings.HasPrefix(d.Name(), "."): // see plainfile.Replace
			errs = append(errs, q.removeStale(d))
		case ext == entryExt:
			e, err := q.read(d.Name())
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				errs = append(errs, q.setAside(d.Name(), err))
			default:
				all = append(all, e)
			}
		}
	}
	now, err := Now()
	errs = append(errs, err)
	slices.SortStableFunc(all, func(a, b *Entry) int { return a.At.order(b.At, now.Boot) })
	if err := joined.Errors(errs...); err != nil {
		return all, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	return all, nil
}

// removeStale deletes a half-written file unless its writer may live: one that lost it would
// have its DEL fail, and be called again.
func (q *Queue) removeStale(d fs.DirEntry) error {
	info, err := d.Info()
	if err == nil && time.Since(info.ModTime()) > time.Minute {
		err = q.remove(d.Name())
	}
	return ignore(err, fs.ErrNotExist)
}

func (q *Queue) read(file string) (*Entry, error) {
	data, err := plainfile.ReadUpTo(filepath.Join(q.dir, file), maxEntry)
	if errors.Is(err, plainfile.ErrTooLong) || errors.Is(err, plainfile.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", ErrBad, err)
	}
	if err != nil {
		return nil, err
	}
	e, err := decode(data)
	if err != nil {
		return nil, err
	}
	if key, _, _ := strings.Cut(file, "."); key != e.key() {
		return nil, fmt.Errorf("%w: it is the entry of another attachment", ErrBad)
	}
	e.file = file
	return e, nil
}

// setAside renames a damaged entry, so that it is reported once and can be examined. It
// returns the report.
func (q *Queue) setAside(file string, why error) error {
	path := filepath.Join(q.dir, file)
	err := fmt.Errorf("%s: %w", path, why)
	if errors.Is(why, ErrBad) {
		err = joined.Errors(err, os.Rename(path, strings.TrimSuffix(path, entryExt)+damagedExt))
	}
	return err
}

// order compares the moments of two entries. Earlier boots have no order among themselves.
func (m Moment) order(other Moment, boot string) int {
	switch {
	case m.Boot == other.Boot:
		return cmp.Compare(m.Nanos, other.Nanos)
	case m.Boot == boot:
		return 1
	case other.Boot == boot:
		return -1
	}
	return cmp.Compare(m.Boot, other.Boot)
}

// ignore returns err unless it is the other.
func ignore(err, other error) error {
	if errors.Is(err, other) {
		return nil
	}
	return err
}
