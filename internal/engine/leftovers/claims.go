package leftovers

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// longestADD is the assumed longest time between the recording of an attachment
// and the end of its plugin, if the runtime was killed. A plugin has two minutes
// by default.
const longestADD = 10 * time.Minute

// ADD is how far the ADD of an attachment has come.
type ADD struct {
	Begun bool      // by this call
	Added bool      // all plugins have answered it, and no DEL has begun
	Since time.Time // when the attachment was recorded, according to its record; zero if unknown
}

// Emptied returns a function that decides about an empty reservation in
// host-local's directory, whose file mode shows that a program like host-local
// made it. The reservation belongs to this attachment if it was made during the
// ADD, and its address is the attachment's or, as after an executable was
// killed, unknown: the built-in plugin of this process leaves no empty file. A
// ledger has the time of the ADD if the record has none.
//
// It cannot be distinguished from an administrator's reservation of the same
// time. Nor can the order be decided within one tick of the clock; such a
// reservation stays, and the log, which names the container, says so.
func (a *Attachment) Emptied(add ADD, records *record.Store, ledger Ledger, log *slog.Logger) func(r Reservation) bool {
	during := sync.OnceValues(func() (since, until time.Time) { return add.during(a.Key(), records, ledger, log) })
	doubtful := map[string]bool{} // already reported
	return func(r Reservation) bool {
		since, until := during()
		all := Addresses(a.Result)
		unknown := len(all) == 0 && !add.Added && !(add.Begun && a.Ran.IsBuiltIn(conflist.HostLocal))
		of := unknown || slices.Contains(all, r.Addr)
		if !of || since.IsZero() || r.Made.Before(since) {
			return false
		}
		if r.madeBetween(since, until) {
			return true
		}
		if !doubtful[r.path()] {
			doubtful[r.path()] = true
			log.Warn("an empty reservation may belong to a killed plugin or to an administrator: delete it if it belongs to nobody",
				"network", a.List.Name, "path", r.path())
		}
		return false
	}
}

// during returns when the attachment was recorded, zero if unknown, and the latest
// possible end of the ADD.
func (a ADD) during(key Key, records *record.Store, ledger Ledger, log *slog.Logger) (since, until time.Time) {
	since, until = a.Since, records.Now()
	if since.IsZero() {
		entered, err := ledger.Read()
		if err != nil {
			log.Warn("read when an attachment was recorded", "error", err)
		}
		since = entered[key].Since
	}
	if latest := since.Add(longestADD); !a.Begun && latest.Before(until) {
		until = latest
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
	return joined.Errors(r.errs...)
}

// Key names an attachment.
type Key struct {
	ContainerID record.PluginID `json:"containerID"`
	Network     string          `json:"network"`
	IfName      string          `json:"ifName"`
}

// KeyOf returns the key of an attachment in libcni's cache.
func KeyOf(c *libcni.NetworkAttachment) Key {
	return Key{record.PluginID(c.ContainerID), c.Network, c.IfName}
}

// Valid are all attachments on a host: those on record, of every owner, and those
// that only libcni's cache has, because GC must keep the attachments of other
// runtimes.
type Valid struct {
	keys []Key // in the order in which they were found
	has  map[Key]bool
}

// FindValid returns the attachments in these records, which are all on the host, and
// in libcni's cache. An attachment of a damaged record may be of any loaded network.
// It fails if a record may have more attachments than were read.
func FindValid(found []record.Found, loaded []string, cached []*libcni.NetworkAttachment) (*Valid, error) {
	v := &Valid{has: map[Key]bool{}}
	for _, f := range found {
		if f.Err != nil && (!errors.Is(f.Err, record.ErrBad) || len(f.Record.Attachments) == 0) {
			return nil, fmt.Errorf("the list of attachments is incomplete: %w", f.Err)
		}
		for n := range f.Record.Present() {
			networks := []string{n.Network}
			if n.Network == "" {
				networks = loaded
			}
			for _, network := range networks {
				v.add(Key{f.Record.Plugins(), network, n.IfName})
			}
		}
	}
	for _, c := range cached {
		v.add(KeyOf(c))
	}
	return v, nil
}

// Has reports whether an attachment is valid.
func (v *Valid) Has(key Key) bool { return v.has[key] }

func (v *Valid) add(key Key) {
	if !v.has[key] {
		v.keys, v.has[key] = append(v.keys, key), true
	}
}

// With returns the attachments of a network, each once, with those of more added.
func (v *Valid) With(network string, more []types.GCAttachment) (list []types.GCAttachment) {
	all := &Valid{slices.Clone(v.keys), maps.Clone(v.has)}
	for _, a := range more {
		all.add(Key{record.PluginID(a.ContainerID), network, a.IfName})
	}
	for _, key := range all.keys {
		if key.Network == network {
			list = append(list, types.GCAttachment{ContainerID: string(key.ContainerID), IfName: key.IfName})
		}
	}
	return list
}
