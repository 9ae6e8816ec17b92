package leftovers

import (
	"bytes"
	"context"
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
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/record"
)

// Versions before 2027 noted each attachment, and the addresses that host-local reserved
// for it, in a ledger beside the records: they did not sync the release of a reservation,
// so that it could come back without its record after a power cut. GC releases what their
// ledgers name, and then deletes them. This file may go in 2028.

// Ledger is what earlier versions noted about an owner's attachments. One that still runs
// appends to the same files, and makes new ones if there are none.
type Ledger struct{ path string }

// LedgerOf returns the owner's ledger, beside the records.
func LedgerOf(records *record.Store, owner string) Ledger {
	h := sha256.Sum256([]byte(owner))
	return Ledger{filepath.Join(records.Dir(), "ledger."+hex.EncodeToString(h[:8]))}
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
}

// Names reports whether a reservation of that address can be the attachment's.
// No address is known of an attachment whose plugin was killed, or which a very
// early version recorded.
func (k Known) Names(addr netip.Addr) bool {
	return len(k.Addresses) == 0 || slices.Contains(k.Addresses, addr)
}

func (k Known) with(l Line) Known {
	k.Gone = l.Gone
	switch {
	case l.Gone:
		k.Until = l.Time
	case !l.Time.IsZero():
		k.Since = l.Time
	}
	k.Dirs, k.Addresses, k.Doubtful = union(k.Dirs, l.Dirs), union(k.Addresses, l.Addresses), union(k.Doubtful, l.Doubtful)
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

// StillDoubtful describes the empty reservations whose owner is unknown, as far as
// they still exist.
func (k Known) StillDoubtful() (lines []string) {
	for _, dir := range k.Dirs {
		for _, addr := range k.Doubtful {
			path := filepath.Join(dir, addr.String())
			if info, err := os.Lstat(path); err == nil && info.Size() == 0 {
				lines = append(lines, path+" is empty: a killed plugin left it, or an administrator reserved the address; delete it if nobody uses it")
			}
		}
	}
	return lines
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
			switch err := record.DecodeLine(line, &one); {
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
		if line.Released {
			delete(known, line.Key)
		} else {
			known[line.Key] = known[line.Key].with(line)
		}
	}
	return known, paths, nil
}

// files returns the paths of the ledger's files in the order of their lines: those of the
// oldest versions, those that one was rewriting when it ended, and the last one.
func (l Ledger) files() (paths []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(l.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	exists := func(path string) bool {
		_, err := os.Lstat(path)
		return !errors.Is(err, fs.ErrNotExist)
	}
	if !exists(l.path+current) && !exists(l.path) {
		return nil
	}
	data := []byte("\n") // ends a torn line
	for _, key := range keys {
		line, err := record.EncodeLine(Line{Key: key, Released: true})
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
		if err = joined.Errors(err, serr, f.Close()); err != nil {
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
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return joined.Errors(errs...)
}

// Garbage are the attachments that an earlier version noted in an owner's ledger, and
// that are not wanted and on no record of any owner.
type Garbage struct {
	Known map[Key]Known
	held  map[string][]netip.Addr // addresses of attachments on record, by network
}

// FindGarbage returns the attachments in the ledger that are not wanted. found
// are the records of all owners.
func FindGarbage(known map[Key]Known, wanted func(Key) bool, found []record.Found) *Garbage {
	g := &Garbage{Known: known, held: map[string][]netip.Addr{}}
	maps.DeleteFunc(known, func(key Key, _ Known) bool { return wanted(key) })
	for _, f := range found {
		for _, n := range f.Record.Attachments {
			g.held[n.Network] = append(g.held[n.Network], AddressesOf([]record.Attachment{n}, nil)...)
		}
	}
	return g
}

// Keys returns the attachments in order.
func (g *Garbage) Keys() []Key {
	return slices.SortedFunc(maps.Keys(g.Known), func(a, b Key) int {
		return slices.Compare([]string{string(a.ContainerID), a.Network, a.IfName}, []string{string(b.ContainerID), b.Network, b.IfName})
	})
}

// names reports whether a reservation is garbage: the ledger names its
// container, interface and address, and no record has the address.
func (g *Garbage) names(network string, r Reservation) (k Known, yes bool) {
	k, ok := g.Known[Key{record.PluginID(r.ContainerID), network, r.IfName}]
	return k, ok && k.Names(r.Addr) && !g.isHeld(network, r.Addr)
}

func (g *Garbage) isHeld(network string, addr netip.Addr) bool {
	return slices.Contains(g.held[network], addr) || slices.Contains(g.held[""], addr) // of a damaged record
}

// Release releases host-local's reservations, in the directories of each
// attachment, for attachments that once left nothing behind, and syncs the directories. It returns a
// line for each, and the directories in which it failed. With dry it releases nothing.
func (g *Garbage) Release(ctx context.Context, dirsOf func(Key, Known) []string, sync func(dir string) error, dry bool) (released []string, failed map[string]error) {
	networks := map[string]string{} // by directory
	for key, k := range g.Known {
		if k.Gone {
			for _, dir := range dirsOf(key, k) {
				networks[dir] = key.Network
			}
		}
	}
	failed = map[string]error{}
	for dir, network := range networks {
		stale, err := g.stale(dir, network)
		for _, r := range stale {
			released = append(released, r.String())
		}
		if !dry {
			for _, r := range stale {
				if err = joined.Errors(err, ctx.Err()); ctx.Err() != nil {
					break
				}
				err = joined.Errors(err, r.Remove(ctx))
			}
			err = joined.Errors(err, sync(dir))
		}
		if err != nil {
			failed[dir] = err
		}
	}
	return released, failed
}

// stale returns the reservations in a directory that belong to attachments which once left
// nothing behind. A power cut brings such a reservation back, sometimes empty; an empty one
// must be of the attachment's time.
func (g *Garbage) stale(dir, network string) ([]Reservation, error) {
	names, err := filesIn(dir)
	if err != nil {
		return nil, fmt.Errorf("stale addresses: %w", err)
	}
	return reservations(dir, names, func(r Reservation) bool {
		if r.IfName != "" {
			k, named := g.names(network, r)
			return named && k.Gone
		}
		if r.content != "" || !r.private || g.isHeld(network, r.Addr) {
			return false
		}
		for key, k := range g.Known {
			during := !k.Since.IsZero() && r.madeBetween(k.Since, k.Until)
			if key.Network == network && k.Gone && during && slices.Contains(k.Addresses, r.Addr) {
				return true
			}
		}
		return false
	})
}

// Others returns the attachments that have reservations in host-local's
// directories of a network and are not garbage. Unnamed are files that name no
// attachment.
func (g *Garbage) Others(network string, dirs []string) (all []types.GCAttachment, unnamed []string, err error) {
	for _, dir := range dirs {
		foreign, others, err := Foreign(dir)
		if err != nil || len(foreign) > 0 {
			return nil, foreign, err
		}
		for _, r := range others {
			if _, named := g.names(network, r); !named {
				all = append(all, types.GCAttachment{ContainerID: r.ContainerID, IfName: r.IfName})
			}
		}
	}
	return all, nil, nil
}
