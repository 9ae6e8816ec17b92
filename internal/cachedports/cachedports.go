// Package cachedports finds attachments that claim ports of the host in libcni's cache.
// Programs that use libcni directly, such as those with go-cni, have no other record:
//
//	results/podnet-c1-eth0  {"containerId": "c1", "netns": …, "capabilityArgs": {"portMappings": […]}}
//
// The runtime's own attachments are in the cache too, one file each. So a [Cache] knows
// the names of the files that it has read, lists the names again only if the directory has
// changed, and at most once a second: what another program attaches within that second
// before a call may be missed.
package cachedports

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// Attachment is an attachment in the cache.
type Attachment struct {
	ContainerID, Network, IfName string
	NetNS                        string // the path that it had; empty if not known
	Claims                       []ports.Claim
}

// Cache is libcni's cache below a directory. It is safe for concurrent use.
type Cache struct {
	dir    string
	logger *slog.Logger
	// onRecord reports whether a container is on the runtime's own record.
	onRecord func(containerID string) bool

	mu      sync.Mutex
	files   map[string]*file // by name
	byPort  map[port][]string
	lists   int       // how often the names were listed
	changed time.Time // of the directory, when the names were listed
	listed  time.Time
}

type port struct {
	protocol string
	number   uint16
}

// file is a file of the cache, as it was when it was read.
type file struct {
	Attachment
	changed time.Time
	size    int64
	ours    bool // the container is on the runtime's own record, which has its ports
	seen    int  // the last list with the name
}

// Open returns the cache. It touches nothing. onRecord reports whether a container, by the
// ID that plugins know, is on the runtime's own record: its claims are not the cache's.
func Open(cacheDir string, onRecord func(containerID string) bool, logger *slog.Logger) *Cache {
	return &Cache{dir: filepath.Join(cacheDir, "results"), logger: logger, onRecord: onRecord}
}

// listEvery is the interval after which the names are listed again.
const listEvery = time.Second

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
	for _, name := range c.candidates(wanted) {
		if c.onRecord(c.files[name].ContainerID) {
			continue
		}
		if f := c.read(name); f != nil && ports.Overlap(f.Claims, wanted) { // it may have changed since
			found = append(found, f.Attachment)
		}
	}
	slices.SortFunc(found, func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return found, nil
}

// candidates returns the files that may claim one of the ports, each once.
func (c *Cache) candidates(wanted []ports.Claim) (names []string) {
	for _, w := range wanted {
		for _, name := range c.byPort[port{w.Protocol, w.Port}] {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
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

// refresh lists the names if the directory has changed, and reads the files that are new,
// or that another program may have written anew.
func (c *Cache) refresh(now time.Time) error {
	if !c.listed.IsZero() && now.Sub(c.listed) < listEvery {
		return nil
	}
	info, err := os.Stat(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		c.files, c.byPort, c.listed, c.changed = nil, nil, now, time.Time{}
		return nil
	}
	if err != nil {
		return err
	}
	// A change within the same tick of the clock as the one before shows no other time.
	if settled := now.Sub(info.ModTime()) > listEvery; settled && info.ModTime().Equal(c.changed) {
		return nil
	}
	names, err := listed(c.dir)
	if err != nil {
		return err
	}
	if c.files == nil {
		c.files, c.byPort = make(map[string]*file), make(map[port][]string)
	}
	c.lists++
	for _, name := range names {
		f := c.files[name]
		if f == nil || !f.ours && !c.unchanged(name, f) {
			c.enter(name, c.read(name))
		}
		if f = c.files[name]; f != nil {
			f.seen = c.lists
		}
	}
	if len(c.files) > len(names) {
		for name, f := range c.files {
			if f.seen != c.lists {
				c.enter(name, nil)
			}
		}
	}
	c.changed, c.listed = info.ModTime(), now
	return nil
}

// enter replaces what is known of a file; nil: it is gone.
func (c *Cache) enter(name string, now *file) {
	if before := c.files[name]; before != nil {
		for _, claim := range before.Claims {
			at := port{claim.Protocol, claim.Port}
			if c.byPort[at] = slices.DeleteFunc(c.byPort[at], func(n string) bool { return n == name }); len(c.byPort[at]) == 0 {
				delete(c.byPort, at)
			}
		}
		delete(c.files, name)
	}
	if now == nil {
		return
	}
	c.files[name] = now
	for _, claim := range now.Claims {
		at := port{claim.Protocol, claim.Port}
		c.byPort[at] = append(c.byPort[at], name)
	}
}

func listed(dir string) (names []string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Readdirnames(-1)
}

func (c *Cache) unchanged(name string, f *file) bool {
	info, err := os.Lstat(filepath.Join(c.dir, name))
	return err == nil && info.ModTime().Equal(f.changed) && info.Size() == f.size
}

// read reads a file. It returns nil if the file is gone, cannot be read, or is of no
// attachment: nobody may be refused a port because of it.
func (c *Cache) read(name string) *file {
	path := filepath.Join(c.dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	f := &file{changed: info.ModTime(), size: info.Size()}
	data, err := plainfile.Read(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.logger.Debug("the ports of the host that a container in libcni's cache has are not known", "file", path, "error", err)
		}
		return f
	}
	if !bytes.Contains(data, []byte(portindex.Capability)) {
		return f
	}
	f.Attachment = parse(data)
	f.ours = f.ContainerID != "" && c.onRecord(f.ContainerID)
	return f
}

// parse reads the content of a file.
func parse(data []byte) (a Attachment) {
	var content struct {
		ContainerID    string                     `json:"containerId"`
		NetworkName    string                     `json:"networkName"`
		IfName         string                     `json:"ifName"`
		NetNS          string                     `json:"netns"`
		Config         []byte                     `json:"config"`
		CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	}
	if json.Unmarshal(data, &content) != nil || content.ContainerID == "" {
		return a
	}
	return Attachment{
		ContainerID: content.ContainerID, Network: content.NetworkName, IfName: content.IfName, NetNS: content.NetNS,
		Claims: portindex.Claims(&record.Attachment{Config: content.Config, Capabilities: content.CapabilityArgs}),
	}
}
