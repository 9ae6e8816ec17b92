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

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
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
	return joined.Errors(s.Sync(d), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func remove(path string) error { return ignoreMissing(os.Remove(path)) }
