// Package cachedports finds attachments that claim ports of the host in libcni's cache.
// Programs that use libcni directly, such as those with go-cni, have no other record:
//
//	results/podnet-c1-eth0  {"containerId": "c1", "netns": …, "capabilityArgs": {"portMappings": […]}}
//
// It is read only for a call that publishes ports. The runtime's own attachments are in
// the cache too, one file each, so a process remembers the files that it has read. Of many
// the kernel says which have changed since.
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
	dir     string
	records *record.Store
	logger  *slog.Logger
	open    func(dir string) (*dirwatch.Watch, error)

	*state
	ref *shared.Ref[state]
}

// state is what the process knows of the files in a cache.
type state struct {
	mu       sync.Mutex
	files    map[string]*file // by name
	watch    *watch           // nil: the names are listed
	lists    int              // how often they were
	compared time.Time        // with the records
	configs  conflist.Cache   // of the networks in the files
}

// states are by the directories of the cache and of the records.
var states shared.Values[[2]string, state]

// Open returns the cache. It touches nothing. What is known of the files is shared with
// the other Caches of the process. The claims of a container on one of the records, by the
// ID that plugins know, are not the cache's.
func Open(cacheDir string, records *record.Store, logger *slog.Logger) *Cache {
	dir := filepath.Join(cacheDir, "results")
	ref := states.Get([2]string{dir, records.Dir()}, func() *state { return &state{} })
	return &Cache{dir: dir, records: records, logger: logger, open: dirwatch.Open, state: ref.Value, ref: ref}
}

// Find returns the attachments that are only in the cache and claim one of the wanted
// ports, by container and interface.
func (c *Cache) Find(wanted []ports.Claim) (found []Attachment, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(time.Now()); err != nil {
		return nil, err
	}
	for name, f := range c.files {
		if !ports.Overlap(f.Claims, wanted) {
			continue
		}
		c.look(name) // it may have changed without another time or size, or be on record now
		if now := c.files[name]; now != nil && ports.Overlap(now.Claims, wanted) {
			found = append(found, now.Attachment)
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
