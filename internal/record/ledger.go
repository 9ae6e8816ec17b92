package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
)

// Key names an attachment.
type Key struct {
	ContainerID PluginID `json:"containerID"`
	Network     string   `json:"network"`
	IfName      string   `json:"ifName"`
}

// Ledger remembers which attachments an owner has recorded, and the addresses
// that host-local reserved for them. It outlives the records: a record can be
// lost, and a power cut can bring back a reservation that was released. Garbage
// collection releases only reservations that a ledger names, because
// host-local's directories may be shared with other programs.
//
// Each event is a line at the end of a file. An attachment is settled once it is
// gone and released for good. Compaction drops the lines of settled attachments
// and keeps all others.
//
// A ledger may be used by several goroutines and processes at once.
type Ledger struct {
	// Fsync syncs a file. Tests replace it.
	Fsync func(*os.File) error

	path string
	// legacy is the file to which earlier versions append. They drop its older
	// lines when it exceeds two mebibytes, so this version must not write there.
	legacy string
	long   atomic.Bool // see Long

	mu            sync.Mutex
	next, running *syncing
}

// syncing is one sync for all lines added before it began.
type syncing struct {
	done chan struct{}
	err  error
}

// Ledger returns the owner's ledger.
func (s *Store) Ledger(owner string) *Ledger {
	h := sha256.Sum256([]byte(owner))
	path := filepath.Join(s.dir, "ledger."+hex.EncodeToString(h[:8]))
	l, _ := s.ledgers.LoadOrStore(owner, &Ledger{Fsync: (*os.File).Sync, path: path + claimsExt, legacy: path})
	return l.(*Ledger)
}

const (
	claimsExt = ".claims"
	prevExt   = ".prev-" // followed by a number; see compact
)

// Line is an event of an attachment. It adds to the attachment's earlier lines.
type Line struct {
	Key
	Gone bool `json:"gone,omitempty"` // it left nothing behind

	// Dirs are host-local's directories for the network. Addresses are the ones
	// that it has reserved there. Lines of earlier versions have neither.
	Dirs      []string     `json:"dirs,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Doubtful are empty reservations that belong either to the attachment or to
	// an administrator. They stay, and are reported as long as they exist.
	Doubtful []netip.Addr `json:"doubtful,omitempty"`
	// Time is the time of the event, by the clock that stamps files. A line with a
	// time that does not say Gone begins an attachment.
	Time time.Time `json:"time,omitzero"`

	// Released means that the attachment now belongs to another program. The
	// ledger stops following it.
	Released bool `json:"released,omitempty"`

	// Sum marks a line written by compaction. It repeats only lines of the files
	// that were read then, so a line without it is later, or the same.
	Sum bool `json:"sum,omitempty"`
}

// Known is everything that the ledger records about an attachment.
type Known struct {
	Gone                bool
	Dirs                []string
	Addresses, Doubtful []netip.Addr
	// Latest are those of the Addresses that it has had since it was last recorded.
	// Its container's ID, and so its key, may have been used before.
	Latest []netip.Addr
	// Since is the time at which it was last recorded, and Until the time at which
	// it was last gone. Unknown times are zero.
	Since, Until time.Time

	released bool
}

// Names reports whether a reservation of that address can be the attachment's.
// No address is known of an attachment whose plugin was killed, or which an
// earlier version recorded.
func (k Known) Names(addr netip.Addr) bool {
	return len(k.Addresses) == 0 || slices.Contains(k.Addresses, addr)
}

func (k Known) with(l Line) Known {
	if l.Released {
		return Known{released: true}
	}
	k.released = false
	k.Gone = l.Gone
	switch {
	case l.Gone:
		k.Until = l.Time
	case !l.Time.IsZero():
		k.Since, k.Latest = l.Time, nil
	}
	k.Dirs = union(k.Dirs, l.Dirs)
	k.Addresses = union(k.Addresses, l.Addresses)
	k.Latest = union(k.Latest, l.Addresses)
	k.Doubtful = union(k.Doubtful, l.Doubtful)
	return k
}

func union[T comparable](to, more []T) []T {
	for _, one := range more {
		if !slices.Contains(to, one) {
			to = append(to, one)
		}
	}
	return to
}

// lines returns lines that record the same as k.
func (k Known) lines(key Key) []Line {
	if k.released {
		return []Line{{Key: key, Released: true}} // not to be read before the lines of earlier versions
	}
	lines := []Line{
		{Key: key, Dirs: k.Dirs, Addresses: k.Addresses, Doubtful: k.Doubtful, Sum: true},
		{Key: key, Addresses: k.Latest, Time: k.Since, Sum: true},
	}
	if k.Gone || !k.Until.IsZero() {
		lines = append(lines, Line{Key: key, Gone: true, Time: k.Until, Sum: true})
	}
	if !k.Gone && !k.Until.IsZero() {
		lines = append(lines, Line{Key: key, Sum: true})
	}
	return lines
}

// Add appends lines. It does not wait for the disk; see Sync.
func (l *Ledger) Add(lines ...Line) error {
	data, err := encodeLines(lines)
	if err == nil && len(data) > 0 {
		err = l.append(data)
	}
	return wrapLedger(err)
}

func wrapLedger(err error) error {
	if err != nil {
		return fmt.Errorf("ledger of attachments: %w", err)
	}
	return nil
}

func encodeLines(lines []Line) ([]byte, error) {
	var data []byte
	for _, l := range lines {
		line, err := encodeLine(l)
		if err != nil {
			return nil, err
		}
		data = append(data, line...)
	}
	return data, nil
}

// decodeLines skips unreadable lines.
func decodeLines(data []byte) (lines []Line) {
	for line := range bytes.Lines(data) {
		var one Line
		if decodeLine(line, &one) == nil {
			lines = append(lines, one)
		}
	}
	return lines
}

// append appends to the ledger. If another process replaced the file meanwhile
// by compacting the ledger, append writes again, because the line may have come
// too late.
func (l *Ledger) append(data []byte) error {
	data = append([]byte("\n"), data...) // ends a torn line
	for {
		f, err := l.open()
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		current, cerr := l.isCurrent(f, len(data))
		if err = errors.Join(err, cerr, f.Close()); err != nil || current {
			return err
		}
	}
}

func (l *Ledger) open() (*os.File, error) {
	for {
		f, err := plainfile.Open(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil { // before the first record
			return nil, err
		}
	}
}

// Now returns a time that is not earlier than that of any file made before, by
// any process, and not later than that of any file made afterwards. If the file
// system of the ledger cannot be asked, Now returns the time of the last tick.
func (l *Ledger) Now() time.Time {
	now, err := plainfile.Stamp(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		var f *os.File
		if f, err = l.open(); err == nil {
			now, err = plainfile.Stamp(l.path)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return plainfile.Now()
	}
	return now
}

// isCurrent reports whether f, which has grown by so many bytes, is still the
// ledger.
func (l *Ledger) isCurrent(f *os.File, added int) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	if mine.Size()/ledgerSize > (mine.Size()-int64(added))/ledgerSize {
		l.long.Store(true)
	}
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, now), err
}

// Sync begins to sync the lines added before. Concurrent calls share one sync.
func (l *Ledger) Sync() *Pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.next
	if s == nil {
		s = &syncing{done: make(chan struct{})}
		go l.run(s, l.running)
		l.next, l.running = s, s
	}
	return &Pending{done: s.done, failed: &s.err}
}

func (l *Ledger) run(s, before *syncing) {
	if before != nil {
		<-before.done
	}
	l.mu.Lock()
	l.next = nil // later lines belong to the next sync
	l.mu.Unlock()
	f, err := plainfile.Open(l.path, os.O_WRONLY, 0)
	if err == nil {
		err = errors.Join(l.Fsync(f), f.Close())
	}
	s.err = wrapLedger(err)
	close(s.done)
}

// Read returns everything known about each attachment that is neither settled
// nor released. It skips unreadable lines.
func (l *Ledger) Read() (map[Key]Known, error) {
	known, _, err := l.read(true)
	maps.DeleteFunc(known, func(_ Key, k Known) bool { return k.released })
	return known, wrapLedger(err)
}

// source is a file of the ledger, the length that was read of it, and the length
// of the lines that were read to their end: a line may be just being written.
type source struct {
	path        string
	size, whole int64
}

// read reads the ledger's files, with or without those of earlier versions.
func (l *Ledger) read(all bool) (map[Key]Known, []source, error) {
	var sums, lines []Line
	var sources []source
	previous, err := l.previous()
	if err != nil {
		return nil, nil, err
	}
	paths := append(previous, l.path)
	if all {
		paths = append([]string{l.legacy + ".old", l.legacy}, paths...)
	}
	for _, path := range paths {
		data, err := plainfile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		sources = append(sources, source{path, int64(len(data)), int64(bytes.LastIndexByte(data, '\n') + 1)})
		for _, one := range decodeLines(data) {
			if one.Sum {
				sums = append(sums, one)
			} else {
				lines = append(lines, one)
			}
		}
	}
	known := make(map[Key]Known)
	for _, l := range append(sums, lines...) {
		known[l.Key] = known[l.Key].with(l)
	}
	return known, sources, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
