package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
)

// Store is a directory of records. Calls for one container must not overlap: the
// caller holds the container's lock.
type Store struct {
	// Sync syncs a file and Read reads one. Tests replace them.
	Sync func(*os.File) error
	Read func(path string) ([]byte, error)

	dir string
}

// FileExt is the extension of a record's file.
const FileExt = ".json"

const tmpExt = ".new" // of a record that is being written

// Open returns the store in dir. The first record creates the directory.
func Open(dir string) *Store {
	return &Store{Sync: (*os.File).Sync, Read: plainfile.Read, dir: dir}
}

// Dir returns the directory.
func (s *Store) Dir() string { return s.dir }

// Name returns the file name of the container's record, without the extension.
// The pin of its namespace has the same name.
func Name(id ID) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:16])
}

func (s *Store) path(id ID) string { return s.Path(Name(id)) }

// Path returns the path of the record with that file name.
func (s *Store) Path(file string) string { return filepath.Join(s.dir, file+FileExt) }

// Survival is when a record survives a power cut.
type Survival int

const (
	// AtOnce: when it is written.
	AtOnce Survival = iota
	// Soon: when the Pending is over. Until then the caller may make only things that a
	// power cut destroys too, such as interfaces and rules.
	Soon
	// Never: a power cut leaves it whole, torn or not at all, and undoes all that is made.
	Never
)

// Begin writes the base of a record before its attachments are made. When it
// returns nil, the record survives a power cut. It replaces an earlier base of
// the container, so r must also contain everything in that base which is still
// true. Begin increments Generation.
func (s *Store) Begin(r *Record) error {
	_, err := s.BeginAs(r, AtOnce, nil)
	return err
}

// BeginAs is Begin for a record that may survive later. All processes see it when BeginAs
// returns. One that replaces another is durable by then: the other may be, and a power cut
// must not tear the new one. The file of a first record may have been prepared; see
// [Store.Prepare].
func (s *Store) BeginAs(r *Record, survives Survival, prepared *plainfile.Unnamed) (p *Pending, err error) {
	if r.Generation > 0 {
		survives = AtOnce
	}
	f, err := s.begin(r, survives == AtOnce, prepared)
	switch {
	case err != nil:
	case survives == AtOnce:
		err = errors.Join(f.Close(), plainfile.SyncDir(s.dir))
	case survives == Never:
		err = f.Close()
	default:
		p = &Pending{done: make(chan struct{})}
		go func() {
			defer close(p.done)
			// One after the other: some file systems take twice as long for both at once.
			p.failed = r.inRecord(errors.Join(s.Sync(f), f.Close(), plainfile.SyncDir(s.dir)))
		}()
	}
	return p, r.inRecord(err)
}

// inRecord completes an error about the file.
func (r *Record) inRecord(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("record of container %s: %w", r.ContainerID, err)
}

// Pending is a sync in progress, of a record.
type Pending struct {
	done   chan struct{}
	failed error // set when done
}

// Wait returns nil when the data survives a power cut, or the reason why it does
// not. A nil Pending has nothing to wait for.
func (p *Pending) Wait() error {
	if p == nil {
		return nil
	}
	<-p.done
	return p.failed
}

// Prepare begins to make the file of a container's first record, for [Store.BeginAs], while
// the caller works out the content. The caller discards it at the end.
func (s *Store) Prepare() *plainfile.Unnamed { return plainfile.Prepare(s.dir, 0o600) }

// begin puts the base in place and returns the open file, which the caller
// closes. If durably is set, it syncs the file first, so that a power cut leaves
// either the old content or the new. It does not sync the directory.
func (s *Store) begin(r *Record, durably bool, prepared *plainfile.Unnamed) (*os.File, error) {
	r.Generation++
	data, err := encodeBase(r)
	if err != nil {
		return nil, err
	}
	if !durably {
		// A file without a name cannot replace another, and some file systems (btrfs)
		// do not write it to the disk.
		if f, err := prepared.Publish(s.path(r.ContainerID), data); err == nil {
			return f, nil
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	path := s.path(r.ContainerID)
	tmp := path + tmpExt
	f, err := plainfile.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(data); err == nil && durably {
		err = s.Sync(f)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), remove(tmp))
	}
	return f, nil
}

// Append adds a line to the container's record without syncing it. It does not
// change r, so networks may append in parallel.
func (s *Store) Append(r *Record, e Entry) error {
	e.Generation, e.Time = r.Generation, time.Now()
	e.ContainerID, e.Owner, e.PluginID = r.ContainerID, r.Owner, r.PluginID
	if n := r.Find(e.IfName); n != nil {
		e.IfOwner = n.Owner
	}
	line, err := EncodeLine(e)
	if err == nil {
		// The leading newline ends a torn line, so that this line does not become
		// part of it. A single write keeps the lines of parallel networks apart.
		err = plainfile.Append(s.path(r.ContainerID), append([]byte("\n"), line...))
	}
	return r.inRecord(err)
}

// Load returns the container's record with its log applied, or nil if there is
// none. With ErrBad, ErrNewer and ErrUnread it returns the legible part, never
// nil.
func (s *Store) Load(id ID) (*Record, error) {
	r, err := s.LoadFile(Name(id))
	if r != nil {
		r.ContainerID = id
	}
	return r, err
}

// LoadFile is Load by file name. Earlier versions reused the files of deleted
// records: unless the caller holds the container's lock, one of them may be
// writing another record to the file. So the record is damaged only if a second
// read finds the same.
func (s *Store) LoadFile(name string) (*Record, error) {
	var before []byte
	for {
		data, err := s.Read(s.Path(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return &Record{}, fmt.Errorf("%w: %w", ErrUnread, err)
		}
		r, err := decode(name, data)
		switch {
		case err == nil && Name(r.ContainerID) == name:
			return r, nil
		case before == nil || !bytes.Equal(before, data):
			before = data
		case err == nil:
			// The file was reused, and a power cut has brought back the name of the
			// deleted record.
			return nil, nil
		default:
			return r, fmt.Errorf("%s: %w", s.Path(name), err)
		}
	}
}

// decode decodes the record of that name. With an error it also returns the
// legible part of a damaged record.
func decode(name string, data []byte) (*Record, error) {
	base, log, _ := bytes.Cut(data, []byte("\n"))
	entries := slices.DeleteFunc(decodeLog(log), func(e Entry) bool { return Name(e.ContainerID) != name })
	r, err := decodeBase(base)
	if r == nil {
		return salvage(entries), err
	}
	for _, e := range entries {
		r.apply(e)
	}
	if err != nil && Name(r.ContainerID) != name {
		return salvage(entries), err // it names another container, or none
	}
	return r, err
}

// salvage rebuilds a record from a log without a base: the container, its
// owners, and the results, which contain the addresses.
func salvage(entries []Entry) *Record {
	r := &Record{}
	for _, e := range entries {
		r.ContainerID, r.Owner, r.PluginID = e.ContainerID, e.Owner, e.PluginID
		r.Generation = e.Generation
		if r.Find(e.IfName) == nil && e.IfName != "" {
			r.Attachments = append(r.Attachments, Attachment{IfName: e.IfName, Owner: e.IfOwner})
		}
		r.apply(e)
	}
	return r
}

// Found is a record in the directory, with the error if it cannot be used.
type Found struct {
	Record *Record // never nil, but for Reload and Find
	File   string  // its name without extension; for Discard
	Err    error   // wraps ErrBad, ErrNewer or ErrUnread
}

// Concerns reports whether the record has attachments of an owner, or cannot be used
// and may have some.
func (f Found) Concerns(owner string) bool {
	return f.Err != nil && (f.Record.Owner == "" || f.Record.Owner == owner) || f.Record.Owned(owner)
}

func (s *Store) entries() ([]os.DirEntry, error) {
	entries, err := os.ReadDir(s.dir)
	if ignoreMissing(err) != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	return entries, nil
}

// Files returns the names of all record files, without the extension, in order.
func (s *Store) Files() ([]string, error) {
	entries, err := s.entries()
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if file, ok := strings.CutSuffix(e.Name(), FileExt); ok {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files, nil
}

// List returns all records in the order of their file names, including those
// that cannot be used.
func (s *Store) List() (found []Found, err error) {
	err = s.Each(func(f Found) bool {
		found = append(found, f)
		return true
	})
	return found, err
}

// Each calls found for the records that List returns, until it returns false. It has one
// of them in memory at a time.
func (s *Store) Each(found func(Found) (more bool)) error {
	files, err := s.Files()
	if err != nil {
		return err
	}
	for _, file := range files {
		r, err := s.LoadFile(file)
		if r == nil && err == nil {
			continue // deleted since the directory was read, or a stray
		}
		if !found(Found{Record: r, File: file, Err: err}) {
			break
		}
	}
	return nil
}

// Reload reads a record again. Record is nil if it was deleted.
func (s *Store) Reload(f Found) Found {
	f.Record, f.Err = s.LoadFile(f.File)
	return f
}

// Find returns the record of a container. Record is nil if there is none.
func (s *Store) Find(id ID) Found { return s.Reload(Found{File: Name(id)}) }

// Delete removes the container's record without syncing the directory. If a
// power cut brings the record back, it is of an earlier boot, and removing its
// container again does no harm.
func (s *Store) Delete(id ID) error { return s.Discard(Name(id)) }

// Discard is Delete by file name.
func (s *Store) Discard(file string) error { return remove(s.Path(file)) }

// Exists reports whether a file of that name holds a record, whole or damaged.
func (s *Store) Exists(file string) (bool, error) {
	_, err := os.Lstat(s.Path(file))
	return err == nil, ignoreMissing(err)
}

// Strays returns the paths of files that belong to no record: new files that
// were never put in place, files whose name does not match their record, and
// files that earlier versions kept for reuse. A record being written has a new
// file, so the caller must keep all others out before it deletes strays.
func (s *Store) Strays() ([]string, error) {
	entries, err := s.entries()
	if err != nil {
		return nil, err
	}
	var strays []string
	for _, e := range entries {
		stray := strings.HasSuffix(e.Name(), FileExt+tmpExt) || strings.HasPrefix(e.Name(), "spare.")
		if file, ok := strings.CutSuffix(e.Name(), FileExt); ok {
			r, err := s.LoadFile(file)
			stray = r == nil && err == nil
		}
		if stray {
			strays = append(strays, filepath.Join(s.dir, e.Name()))
		}
	}
	return strays, nil
}

// Now returns a time that is not earlier than that of any file made before, by any
// process, and not later than that of any file made afterwards. If the file system of the
// records cannot be asked, Now returns the time of the last tick.
func (s *Store) Now() time.Time {
	now, err := plainfile.Stamp(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			now, err = plainfile.Stamp(s.dir)
		}
	}
	if err != nil {
		return plainfile.Now()
	}
	return now
}

// SyncDir syncs a directory, so that deletions in it survive a power cut. It ignores one
// that does not exist.
func (s *Store) SyncDir(dir string) error {
	d, err := plainfile.Open(dir, os.O_RDONLY, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	return errors.Join(s.Sync(d), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func remove(path string) error { return ignoreMissing(os.Remove(path)) }
