// Package claims decides whose a reservation of host-local is. An attachment is on record
// before its address is reserved, and until the release is on the disk, so that each
// reservation of the runtime's has a record, after a kill and after a power cut. All
// others belong to other programs, which may share the directory.
//
//	ADD:  Claims                   the addresses of this call
//	DEL:  Attachment.Judge         is an empty file left of this attachment?
//	      Releases                 the release is on the disk before the record is deleted
//	GC:   FindGarbage, Garbage     what earlier versions noted and is on no record
package claims

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/record"
)

// Claims are the addresses that host-local has reserved for an attachment during
// this call.
type Claims struct {
	mu    sync.Mutex
	addrs []netip.Addr
	since time.Time // when this call recorded the attachment
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

// All returns the addresses, and the time at which this call recorded the attachment.
func (c *Claims) All() (addrs []netip.Addr, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addrs), c.since
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
	Log       *slog.Logger
	Container record.ID // for the log
	Key       record.Key
	Claims    *Claims
	Addresses []netip.Addr // in its result
	Answered  bool         // all plugins have answered the ADD
	Recorded  time.Time    // when it was recorded, according to its record; zero if unknown
	Records   *record.Store
	Ledger    record.Ledger // for records of earlier versions, which have no time
}

// Judge returns a function that decides about an empty reservation in
// host-local's directory, whose file mode shows that a program like host-local
// made it. The reservation belongs to this attachment if it was made during the
// ADD, and its address is the attachment's or, as after an executable was
// killed, unknown.
//
// It cannot be distinguished from an administrator's reservation of the same
// time. Nor can the order be decided within one tick of the clock; such a
// reservation stays, and the log says so.
func (a Attachment) Judge() func(r ipamdir.Reservation) bool {
	during := sync.OnceValues(a.during)
	doubtful := map[string]bool{} // already reported
	return func(r ipamdir.Reservation) bool {
		since, until := during()
		claimed, _ := a.Claims.All()
		all := slices.Concat(a.Addresses, claimed)
		of := slices.Contains(all, r.Addr) || len(all) == 0 && !a.Answered
		if !of || since.IsZero() || r.Made.Before(since) {
			return false
		}
		if r.MadeBetween(since, until) {
			return true
		}
		if !doubtful[r.Path()] {
			doubtful[r.Path()] = true
			a.Log.Warn("an empty reservation may belong to a killed plugin or to an administrator: delete it if it belongs to nobody",
				"container", a.Container, "network", a.Key.Network, "path", r.Path())
		}
		return false
	}
}

// during returns when the attachment was recorded, zero if unknown, and the latest
// possible end of its ADD.
func (a Attachment) during() (since, until time.Time) {
	now := a.Records.Now()
	if _, since = a.Claims.All(); !since.IsZero() {
		return since, now
	}
	if since = a.Recorded; since.IsZero() {
		entered, err := a.Ledger.Read()
		if err != nil {
			a.Log.Warn("read when an attachment was recorded", "container", a.Container, "error", err)
		}
		since = entered[a.Key].Since
	}
	if until = since.Add(longestADD); until.After(now) {
		until = now
	}
	return since, until
}

// Releases syncs the directories in which a removal has released reservations: none may
// come back after a power cut without the record that names its attachment.
type Releases struct {
	mu      sync.Mutex
	dirs    map[string]bool
	errs    []error
	running sync.WaitGroup
}

// Begin begins to sync a directory, in which a reservation was just released.
func (r *Releases) Begin(dir string, sync func(dir string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dirs == nil {
		r.dirs = make(map[string]bool)
	}
	r.dirs[dir] = true
	r.running.Go(func() {
		if err := sync(dir); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.errs = append(r.errs, err)
		}
	})
}

// Has reports whether Begin was called for a directory.
func (r *Releases) Has(dir string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirs[dir]
}

// Wait waits until all are on the disk, and returns why some may not be.
func (r *Releases) Wait() error {
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}
