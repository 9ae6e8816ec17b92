package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
)

// Versions before 2027 noted each attachment, and the addresses that host-local reserved
// for it, in a ledger beside the records: they did not sync the release of a reservation,
// so that it could come back without its record after a power cut. GC releases what their
// ledgers name, and then deletes them. This file may go in 2028.

// Key names an attachment.
type Key struct {
	ContainerID PluginID `json:"containerID"`
	Network     string   `json:"network"`
	IfName      string   `json:"ifName"`
}

// Ledger is what earlier versions noted about an owner's attachments. One that still runs
// appends to the same files, and makes new ones if there are none.
type Ledger struct{ path string }

// Ledger returns the owner's ledger.
func (s *Store) Ledger(owner string) Ledger {
	h := sha256.Sum256([]byte(owner))
	return Ledger{filepath.Join(s.dir, "ledger."+hex.EncodeToString(h[:8]))}
}

// current is the extension of the file to which the latest of the earlier versions append.
const current = ".claims"

// Line is an event of an attachment. It adds to the attachment's earlier lines.
type Line struct {
	Key
	Gone bool `json:"gone,omitempty"` // it left nothing behind

	// Dirs are host-local's directories for the network. Addresses are the ones
	// that it has reserved there. The oldest lines have neither.
	Dirs      []string     `json:"dirs,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Doubtful are empty reservations that belong either to the attachment or to
	// an administrator. They stay, and are reported as long as they exist.
	Doubtful []netip.Addr `json:"doubtful,omitempty"`
	// Time is the time of the event, by the clock that stamps files. A line with a
	// time that does not say Gone begins an attachment.
	Time time.Time `json:"time,omitzero"`
	// Released means that the attachment was removed and its reservations are, for
	// certain, or that it belongs to another program now.
	Released bool `json:"released,omitempty"`
	// Sum marks a line that repeats earlier ones, as a ledger has them that was rewritten.
	Sum bool `json:"sum,omitempty"`
}

// Known is everything that the ledger records about an attachment.
type Known struct {
	Gone                bool
	Dirs                []string
	Addresses, Doubtful []netip.Addr
	// Since is the time at which it was last recorded, and Until the time at which
	// it was last gone. Unknown times are zero.
	Since, Until time.Time

	released bool
}

// Names reports whether a reservation of that address can be the attachment's.
// No address is known of an attachment whose plugin was killed, or which a very
// early version recorded.
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
		k.Since = l.Time
	}
	k.Dirs = union(k.Dirs, l.Dirs)
	k.Addresses = union(k.Addresses, l.Addresses)
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

// Read returns everything known about each attachment that is not released. It skips
// unreadable lines.
func (l Ledger) Read() (map[Key]Known, error) {
	known, _, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("ledger of attachments: %w", err)
	}
	return known, nil
}

// read also returns the paths of the files.
func (l Ledger) read() (known map[Key]Known, paths []string, err error) {
	paths, err = l.files()
	if err != nil || len(paths) == 0 {
		return nil, nil, err
	}
	var sums, lines []Line
	for _, path := range paths {
		data, err := plainfile.Read(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		for line := range bytes.Lines(data) {
			var one Line
			switch err := decodeLine(line, &one); {
			case err != nil: // torn
			case one.Sum:
				sums = append(sums, one)
			default:
				lines = append(lines, one)
			}
		}
	}
	known = make(map[Key]Known)
	for _, line := range append(sums, lines...) {
		known[line.Key] = known[line.Key].with(line)
	}
	for key, k := range known {
		if k.released {
			delete(known, key)
		}
	}
	return known, paths, nil
}

// files returns the paths of the ledger's files in the order of their lines: those of the
// oldest versions, those that one was rewriting when it ended, and the last one.
func (l Ledger) files() (paths []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if ignoreMissing(err) != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(l.path)) {
			paths = append(paths, filepath.Join(filepath.Dir(l.path), e.Name()))
		}
	}
	order := func(path string) (n int) {
		switch ext := strings.TrimPrefix(path, l.path); ext {
		case ".old":
			return -3
		case "":
			return -2
		case current:
			return 1 << 31
		default:
			if _, err := fmt.Sscanf(ext, current+".prev-%d", &n); err != nil {
				return -1 // a new file that was not yet put in place: it only repeats
			}
			return n
		}
	}
	slices.SortStableFunc(paths, func(a, b string) int { return order(a) - order(b) })
	return paths, nil
}

// Forget notes that attachments are not to be looked for any more: their reservations are
// gone for certain, or another program's by now. Without a ledger it does nothing.
func (l Ledger) Forget(keys []Key) error {
	missing := true
	for _, path := range []string{l.path + current, l.path} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			missing = false
		}
	}
	if missing {
		return nil
	}
	data := []byte("\n") // ends a torn line
	for _, key := range keys {
		line, err := encodeLine(Line{Key: key, Released: true})
		if err != nil {
			return err
		}
		data = append(data, line...)
	}
	if err := l.append(data); err != nil {
		return fmt.Errorf("ledger of attachments: %w", err)
	}
	return nil
}

// append appends to the ledger. If an earlier version rewrote it meanwhile, append writes
// again, because the lines may have come too late.
func (l Ledger) append(data []byte) error {
	for {
		f, err := plainfile.Open(l.path+current, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		mine, serr := f.Stat()
		if err = errors.Join(err, serr, f.Close()); err != nil {
			return err
		}
		now, err := os.Lstat(l.path + current)
		if !errors.Is(err, fs.ErrNotExist) && (err != nil || os.SameFile(mine, now)) {
			return err
		}
	}
}

// Settle is Forget, and deletes the ledger if it names no other attachment. No other call
// may be in progress, of an earlier version either.
func (l Ledger) Settle(keys []Key) error {
	known, paths, err := l.read()
	if err != nil {
		return fmt.Errorf("ledger of attachments: %w", err)
	}
	for _, key := range keys {
		delete(known, key)
	}
	if len(known) > 0 {
		return l.Forget(keys)
	}
	var errs []error
	for _, path := range paths { // the earliest first: a later one may end what it begins
		errs = append(errs, remove(path))
	}
	return errors.Join(errs...)
}
