// Package cachedports finds attachments that claim ports of the host in libcni's cache.
// Programs that use libcni directly, such as those with go-cni, have no other record:
//
//	results/podnet-c1-eth0  {"containerId": "c1", "netns": …, "capabilityArgs": {"portMappings": […]}}
//
// The runtime's own attachments are in the cache too, one file each. So a [Cache] knows
// the files that it has read. Of many the kernel says which have changed since. Beside few,
// the names are listed again if the directory has changed, and at most once a second: what
// another program attaches within that second before a call may be missed. A program may
// be a process for each container. So what a Cache knows of many files is kept in a file
// too, see kept.
package cachedports

import (
	"cmp"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
)

// Attachment is an attachment in the cache.
type Attachment struct {
	ContainerID, Network, IfName string
	NetNS                        string // the path that it had; empty if not known
	Claims                       []ports.Claim
}

// Cache is libcni's cache below a directory. It is safe for concurrent use.
type Cache struct {
	place
	logger *slog.Logger
	// onRecord reports whether a container is on the runtime's own record, and listed
	// returns it for many containers at one time.
	onRecord func(containerID string) bool
	listed   func() func(containerID string) bool
	open     func(dir string) (*dirwatch.Watch, error)

	*state
	ref *shared.Ref[state] // of the process's state; nil if it is the Cache's own
}

// place is where the cache and the records are.
type place struct {
	dir     string
	kept    string // path of the file in which later processes find what is known
	records string
}

// state is what the process knows of the files in the cache.
type state struct {
	mu      sync.Mutex
	files   map[string]*file // by name; nil until the names were listed
	byPort  ports.ByPort     // names of files
	lists   int              // how often the names were listed
	changed time.Time        // of the directory, when the names were listed
	looked  time.Time        // when they were listed last
	watch   *watch           // nil: the names are listed
	configs conflist.Cache   // of the networks in the files
}

func newState() *state { return &state{} }

var states shared.Values[place, state]

// Open returns the cache. It touches nothing. kept is the path of a file for what the
// Cache knows, which is shared with the other Caches of the process. The claims of a
// container on one of the records, by the ID that plugins know, are not the cache's.
func Open(cacheDir, kept string, records *record.Store, logger *slog.Logger) *Cache {
	at := place{filepath.Join(cacheDir, "results"), kept, records.Dir()}
	ref := states.Get(at, newState)
	c := &Cache{place: at, logger: logger, open: dirwatch.Open, state: ref.Value, ref: ref}
	c.onRecord = func(id string) bool {
		has, err := records.Exists(record.Name(record.ID(id)))
		return has || err != nil
	}
	c.listed = func() func(string) bool {
		names, err := records.Files()
		if err != nil {
			return c.onRecord
		}
		return func(id string) bool {
			_, has := slices.BinarySearch(names, record.Name(record.ID(id)))
			return has
		}
	}
	return c
}

// Find returns the attachments that are only in the cache and claim one of the wanted
// ports, by container and interface. Each was read anew.
func (c *Cache) Find(wanted []ports.Claim) (found []Attachment, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(time.Now()); err != nil {
		return nil, err
	}
	for _, name := range c.byPort.Find(wanted) {
		if c.onRecord(c.files[name].id) {
			continue
		}
		if a, _ := c.read(name); ports.Overlap(a.Claims, wanted) { // it may have changed since
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return found, nil
}

// Conflict is a wanted port that an attachment has which is only in the cache.
type Conflict struct {
	Wanted, Claim ports.Claim
	Attachment
	Lives bool // certainly, on this host; else it may be gone
}

// Conflicts returns a Conflict for each wanted port of each attachment that Find returns,
// except those of containers that known returns true for. With an error these are the ones
// that are known, and as far as is known.
func (c *Cache) Conflicts(host *hostns.NetNS, wanted []ports.Claim, known func(containerID string) bool) (found []Conflict, err error) {
	all, err := c.Find(wanted)
	for _, a := range all {
		if known(a.ContainerID) {
			continue
		}
		lives, lerr := a.livesOn(host)
		err = errors.Join(err, lerr)
		for _, w := range wanted {
			if i := slices.IndexFunc(a.Claims, w.Overlaps); i >= 0 {
				found = append(found, Conflict{w, a.Claims[i], a, lives})
			}
		}
	}
	return found, err
}
