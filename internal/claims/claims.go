// Package claims decides whose a reservation of host-local is. It notes in an
// owner's ledger which addresses were reserved for an attachment. Only by these
// notes it distinguishes garbage from the reservations of other programs, which
// may share the directory.
//
//	ADD:  Claims, Ledger.Note      an address is in the ledger before its file exists
//	DEL:  Attachment.Judge         is an empty file left of this attachment?
//	      Ledger.NoteGone          nothing is left of it
//	GC:   FindGarbage, Garbage     attachments in the ledger that are on no record
package claims

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
)

// Claims are the addresses that host-local has reserved for an attachment during
// this call.
type Claims struct {
	mu    sync.Mutex
	addrs []netip.Addr
	since time.Time // when this call recorded the attachment in the ledger
}

// Restart forgets the claims of an attempt that was undone.
func (c *Claims) Restart(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs, c.since = nil, since
}

// Add adds addresses.
func (c *Claims) Add(addrs ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs = append(c.addrs, addrs...)
}

// All returns the addresses, and the time at which the ledger recorded the
// attachment.
func (c *Claims) All() (addrs []netip.Addr, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addrs), c.since
}

// Ledger is an owner's ledger, for notes about one container. A note that fails
// is logged and does not fail the call: GC then releases less.
type Ledger struct {
	*record.Ledger
	Log       *slog.Logger
	Container record.ID // for the log
}

// Note adds lines to the ledger.
func (l Ledger) Note(lines ...record.Line) { l.Failed(l.Add(lines...)) }

// Failed logs an error of the ledger, if there is one.
func (l Ledger) Failed(err error) {
	if err != nil {
		l.Log.Warn("write the addresses that GC needs to the ledger", "container", l.Container, "error", err)
	}
}

// NoteGone notes that attachments left nothing behind.
func (l Ledger) NoteGone(keys []record.Key) {
	now := plainfile.Now()
	var lines []record.Line
	for _, key := range keys {
		lines = append(lines, record.Line{Key: key, Gone: true, Time: now})
	}
	l.Note(lines...)
	if l.Long() {
		l.Failed(l.Compact(settled))
	}
}

// settled returns the attachments whose reservations are released for good: they
// have no files, and the removal of their files is on the disk.
func settled(gone map[record.Key]record.Known) []record.Key {
	held, synced := map[record.Key]bool{}, map[string]error{}
	for _, k := range gone {
		for _, dir := range k.Dirs {
			if _, done := synced[dir]; done {
				continue
			}
			synced[dir] = ipamdir.SyncDir(dir)
			_, err := ipamdir.Stale(dir, func(r ipamdir.Reservation) bool {
				held[keyOf(filepath.Base(dir), r)] = true
				return false
			})
			synced[dir] = errors.Join(synced[dir], err)
		}
	}
	var keys []record.Key
	for key, k := range gone {
		unknown := func(dir string) bool { return synced[dir] != nil }
		if len(k.Dirs) > 0 && len(k.Doubtful) == 0 && !held[key] && !slices.ContainsFunc(k.Dirs, unknown) {
			keys = append(keys, key)
		}
	}
	return keys
}

// keyOf returns the attachment that a reservation names.
func keyOf(network string, r ipamdir.Reservation) record.Key {
	return record.Key{ContainerID: record.PluginID(r.ContainerID), Network: network, IfName: r.IfName}
}

// longestADD is the assumed longest time between the recording of an attachment
// and the end of its plugin, if the runtime was killed. A plugin has two minutes
// by default.
const longestADD = 10 * time.Minute

// Attachment is an attachment whose reservations are judged.
type Attachment struct {
	Ledger    Ledger
	Key       record.Key
	Claims    *Claims
	Addresses []netip.Addr // in its result
	Answered  bool         // all plugins have answered the ADD
	Recorded  time.Time    // when it was recorded, according to its record; zero if unknown
}

// Judge returns a function that decides about an empty reservation in
// host-local's directory, whose file mode shows that a program like host-local
// made it. The reservation belongs to this attachment if it was made during the
// ADD, and its address is the attachment's or, as after an executable was
// killed, unknown.
//
// It cannot be distinguished from an administrator's reservation of the same
// time. Nor can the order be decided within one tick of the clock; such a
// reservation stays, and is reported.
func (a Attachment) Judge() func(r ipamdir.Reservation) bool {
	known := sync.OnceValue(a.known)
	doubtful := map[string]bool{} // already reported
	return func(r ipamdir.Reservation) bool {
		k := known()
		all := slices.Concat(a.Addresses, k.Latest)
		of := slices.Contains(all, r.Addr) || len(all) == 0 && !a.Answered
		if !of || k.Since.IsZero() || r.Made.Before(k.Since) {
			return false
		}
		if r.MadeBetween(k.Since, k.Until) {
			return true
		}
		if !doubtful[r.Path()] {
			doubtful[r.Path()] = true
			a.Ledger.Log.Warn("an empty reservation may belong to a killed plugin or to an administrator: delete it if it belongs to nobody",
				"container", a.Ledger.Container, "network", a.Key.Network, "path", r.Path())
			a.Ledger.Note(record.Line{Key: a.Key, Dirs: []string{r.Dir}, Doubtful: []netip.Addr{r.Addr}})
		}
		return false
	}
}

// known returns the ledger's entry of the attachment, with this call's claims.
// Until is the latest possible end of its ADD. If the entry is of an earlier
// attachment of the same key, because a power cut took the later lines, its
// addresses and times do not count.
func (a Attachment) known() record.Known {
	all, err := a.Ledger.Read()
	a.Ledger.Failed(err)
	k := all[a.Key]
	now := a.Ledger.Now()
	addrs, claimed := a.Claims.All()
	recorded := a.Recorded
	if !claimed.IsZero() {
		recorded = claimed
	}
	if k.Since.Before(recorded) {
		k = record.Known{Since: recorded}
	}
	k.Latest = append(k.Latest, addrs...)
	if k.Until = k.Since.Add(longestADD); !claimed.IsZero() || k.Until.After(now) {
		k.Until = now
	}
	return k
}
