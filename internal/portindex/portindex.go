// Package portindex finds the records that claim ports of the host, without reading
// all of them.
//
// The records alone decide who has a port. The index is a directory beside them that
// has a hard link to each record that was read, with the ports that the record claims
// in its name:
//
//	attachments/0a1b….json
//	attachments/ports/0a1b….t80.8000-8019u53
//
// A record is up to date in the index if both names have the same inode. The first line
// of a record, which has the ports, is never changed: a container that is attached
// again gets a new file. While the index has a link to the old one, its inode is not
// given to another file. So two lists of names show which records have to be read:
// those that earlier versions wrote, or a process that was killed before it entered its
// own.
//
// Nothing needs a lock. An entry that is missing is made again, and one whose record is
// gone is removed, by whoever notices.
//
// A process that searches again, beside many records, does not compare the names each
// time: it keeps the index in memory, and hears from the kernel which records have
// changed since; see view.
package portindex

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
)

// Index is the index of a directory of records. It is safe for concurrent use.
type Index struct {
	records *record.Store
	dir     string
	logger  *slog.Logger

	*state
	ref *shared.Ref[state] // of the process's state; nil if it is the Index's own

	most  int // beside more records searches have a view
	watch func(dir string) (*dirwatch.Watch, error)
}

// state is what the process knows of a directory. Without it in common, a program with a
// Runtime for each container would have as many views, and a watch for each: the user may
// have 128, of which other programs need some.
type state struct {
	mu   sync.Mutex // held while reading, so that of several callers only one reads a new record
	view *view      // nil: each search compares the names
	many bool       // the last search has found many records
	next int        // where Free goes on, from the first port of the range
}

func newState() *state { return &state{next: rand.IntN(1 << 16)} }

var states shared.Values[string, state] // by the directory of the records

// most is the number of records up to which a view does not pay. A search beside them
// takes some microseconds, and a view one of the user's few inotify instances.
const most = 64

// Open returns the index of the records. The first record that is entered makes its
// directory. What is in memory is shared with the other Indexes of the directory.
func Open(records *record.Store, logger *slog.Logger) *Index {
	ref := states.Get(records.Dir(), newState)
	x := open(records, logger, ref.Value)
	x.ref = ref
	return x
}

func open(records *record.Store, logger *slog.Logger, of *state) *Index {
	return &Index{records: records, dir: filepath.Join(records.Dir(), "ports"), logger: logger, state: of, most: most, watch: dirwatch.OpenNames}
}

// Holder is an attachment on record that claims a port.
type Holder struct {
	Record     *record.Record
	Attachment *record.Attachment
	Claim      ports.Claim
}

// Capability is the name of the capability by which a caller asks for ports.
const Capability = "portMappings"

// Claims returns the ports that an attachment claims: those that its caller asked for,
// if a plugin of the network was told of them. Its configuration is parsed by configs,
// which may be nil.
func Claims(a *record.Attachment, configs *conflist.Cache) []ports.Claim {
	mappings, ok := a.Capabilities[Capability]
	if !ok {
		return nil
	}
	claims := ports.Of(mappings)
	if len(claims) == 0 {
		return nil
	}
	list, err := configs.Parse(a.Config)
	if err == nil && !conflist.Declares(list, Capability) {
		return nil
	}
	return claims
}

// Find returns the attachments, of all hosts and boots, whose claims overlap the
// wanted ones. Of a record that cannot be used, the legible part counts.
func (x *Index) Find(wanted []ports.Claim) (holders []Holder, err error) {
	names, err := x.candidates(wanted)
	if err != nil {
		return nil, fmt.Errorf("host ports on record: %w", err)
	}
	for _, name := range names {
		rec, err := x.records.LoadFile(name)
		if err != nil {
			x.logger.Warn("the ports of the host that a container has may be unknown: its record cannot be used", "record", name, "error", err)
		}
		if rec != nil { // else it was removed meanwhile
			holders = append(holders, holdersIn(rec, wanted)...)
		}
	}
	return holders, nil
}

func holdersIn(rec *record.Record, wanted []ports.Claim) (holders []Holder) {
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		if a.State == record.Deleted {
			continue
		}
		for _, c := range Claims(a, nil) {
			if slices.ContainsFunc(wanted, c.Overlaps) {
				holders = append(holders, Holder{rec, a, c})
			}
		}
	}
	return holders
}

// candidates returns the names of the records that may claim one of the ports, in
// order. It enters the records that are not in the index.
func (x *Index) candidates(wanted []ports.Claim) (names []string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v, codes, err := x.refresh()
	if err != nil {
		return nil, err
	}
	if v != nil {
		return v.records.Find(wanted), nil
	}
	for name, code := range codes {
		if ports.Coded(code, wanted) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// refresh returns the view as it is now, or without one the codes of all records that
// claim ports.
func (x *Index) refresh() (*view, map[string]string, error) {
	if x.follow() {
		x.readChanged()
		return x.view, nil, nil
	}
	v := x.newView() // before the names are read, so that it hears of all later changes
	codes, err := x.codes(v)
	if err != nil {
		return nil, nil, errors.Join(err, v.close())
	}
	x.view = v
	return v, codes, nil
}

// current returns the view as it is now, or one that follows nothing.
func (x *Index) current() (*view, error) {
	v, codes, err := x.refresh()
	if err != nil || v != nil {
		return v, err
	}
	v = emptyView()
	for name, code := range codes {
		v.set(name, code)
	}
	return v, nil
}

// codes returns the codes of all records that claim ports. It enters them in a view, if
// there is one.
func (x *Index) codes(v *view) (map[string]string, error) {
	now, err := x.compare()
	if err != nil {
		return nil, err
	}
	codes := make(map[string]string)
	for _, e := range now.entered {
		if e.code != "" {
			codes[e.name] = e.code
		}
	}
	for _, name := range now.unread {
		code, sure := x.read(name)
		if code != "" {
			codes[name] = code
		}
		if !sure {
			v.doubt(name)
		}
	}
	for _, e := range now.stale {
		x.remove(e)
	}
	for name, code := range codes {
		v.set(name, code)
	}
	x.many = len(now.entered)+len(now.unread) > x.most
	return codes, nil
}

// entry is a name in the index.
type entry struct {
	name, code string // of the record, and of its ports
	inode      uint64
}

func (e entry) file() string { return e.name + "." + e.code }

// comparison is how the index differs from the records.
type comparison struct {
	entered []entry  // records that are up to date in the index
	unread  []string // names of the others
	stale   []entry  // whose record is gone, or another
}

// compare compares the names and inodes of both directories. It reads the index first:
// an entry is made after its record, so that an entry whose record is not listed
// afterwards has none any more.
func (x *Index) compare() (now comparison, err error) {
	var entries []entry
	err = inodes(x.dir, func(file string, inode uint64) {
		if name, code, ok := strings.Cut(file, "."); ok {
			entries = append(entries, entry{name, code, inode})
		}
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return now, err
	}
	type found struct {
		name    string
		inode   uint64
		entered bool
	}
	var records []found
	index := make(map[string]int, len(entries)+1)
	err = inodes(x.records.Dir(), func(file string, inode uint64) {
		if name, ok := strings.CutSuffix(file, record.FileExt); ok {
			index[name] = len(records)
			records = append(records, found{name: name, inode: inode})
		}
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return now, err
	}
	for _, e := range entries {
		i, ok := index[e.name]
		if ok && records[i].inode == e.inode && e.inode != 0 {
			records[i].entered = true
			now.entered = append(now.entered, e)
			continue
		}
		now.stale = append(now.stale, e)
		if !ok { // a list may omit a file that was replaced meanwhile
			now.unread = append(now.unread, e.name)
		}
	}
	for _, r := range records {
		if !r.entered {
			now.unread = append(now.unread, r.name)
		}
	}
	slices.Sort(now.unread)
	now.unread = slices.Compact(now.unread)
	return now, nil
}

// read reads a record and enters it. The code is empty if there is none, or it claims
// no ports; it is not sure if the record cannot be read now.
//
// The file is opened before it is read: should the record be replaced meanwhile, the
// entry is for the old file, and stale.
func (x *Index) read(name string) (code string, sure bool) {
	f, err := plainfile.Open(x.records.Path(name), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", true
	}
	var rec *record.Record
	if err == nil {
		defer f.Close() // was only read
		rec, err = x.records.LoadFile(name)
	}
	if err != nil {
		x.logger.Warn("the ports of the host that a container has may be unknown: its record cannot be used", "record", name, "error", err)
	}
	if rec == nil || errors.Is(err, record.ErrUnread) {
		return "", err == nil
	}
	code = codeOf(rec)
	x.enter(fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()), entry{name: name, code: code})
	return code, true
}

// codeOf returns the code of all ports in a record. It may be of more than those that
// the record claims: those that no plugin forwards, and those of attachments that are
// gone, so that the log does not change the entry.
func codeOf(rec *record.Record) string {
	var all []ports.Claim
	for i := range rec.Attachments {
		if mappings, ok := rec.Attachments[i].Capabilities[Capability]; ok {
			all = append(all, ports.Of(mappings)...)
		}
	}
	return ports.Code(all)
}

// enter makes an entry for the file of a record. Without it the record is read again by
// the next process, and without a view by the next caller.
func (x *Index) enter(file string, e entry) {
	path := filepath.Join(x.dir, e.file())
	var err error
	for range 3 {
		err = link(file, path)
		switch {
		case errors.Is(err, fs.ErrExist):
			if isSame(file, path) {
				return // another process has made it meanwhile
			}
			err = cmp.Or(os.Remove(path), err) // of an earlier record
		case errors.Is(err, fs.ErrNotExist):
			if _, gone := os.Lstat(x.records.Path(e.name)); gone != nil {
				return // the record was removed
			}
			err = cmp.Or(os.MkdirAll(x.dir, 0o700), err)
		default:
			if err != nil {
				x.logger.Debug("a record is not entered in the index of ports", "record", e.name, "error", err)
			}
			return
		}
	}
	x.logger.Debug("a record is not entered in the index of ports", "record", e.name, "error", err)
}

func isSame(file, path string) bool {
	a, err := os.Stat(file)
	b, berr := os.Stat(path)
	return err == nil && berr == nil && os.SameFile(a, b)
}

// remove deletes an entry, unless it has become that of the record.
func (x *Index) remove(e entry) {
	if err := os.Remove(filepath.Join(x.dir, e.file())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.logger.Debug("an entry stays in the index of ports", "record", e.name, "error", err)
	}
}

// Enter enters a record that was just written, so that no other call has to read it.
// The caller has the container's lock. A record without ports is not entered in the
// directory: the next process reads it once. One of a pool's is, so that no Setup reads it.
func (x *Index) Enter(rec *record.Record) {
	name, code := record.Name(rec.ContainerID), codeOf(rec)
	if code != "" || rec.Warm {
		x.enter(x.records.Path(name), entry{name: name, code: code})
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.follow() { // nobody else changes the record while the caller has the lock
		x.setCode(name, code)
	}
}

// Forget removes the entry of a record that was deleted.
func (x *Index) Forget(rec *record.Record) {
	x.remove(entry{name: record.Name(rec.ContainerID), code: codeOf(rec)})
}

// Strays returns the paths of entries whose record is gone: an earlier version deleted
// it, or a process was killed before it deleted both.
func (x *Index) Strays() ([]string, error) {
	now, err := x.compare()
	if err != nil {
		return nil, fmt.Errorf("index of ports: %w", err)
	}
	var paths []string
	for _, e := range now.stale {
		paths = append(paths, filepath.Join(x.dir, e.file()))
	}
	return paths, nil
}
