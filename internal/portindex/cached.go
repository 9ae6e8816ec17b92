package portindex

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
	"github.com/embedcni/cni/netns"
)

// Cache is libcni's cache, where the attachments of programs are that use libcni directly,
// such as those with go-cni:
//
//	results/podnet-c1-eth0  {"containerId": "c1", "netns": …, "capabilityArgs": {"portMappings": […]}}
//
// The runtime's own are there too, whose ports are the records'. It is safe for concurrent use.
type Cache struct {
	dir     string
	records *record.Store
	logger  *slog.Logger
	configs conflist.Cache // of the networks in the files
	files   *dirwatch.Files[[]slot]
}

// Cached is an attachment in the cache.
type Cached struct {
	ContainerID, Network, IfName string
	NetNS                        string // the path that it had; empty if not known
	Claims                       []ports.Claim
}

var caches shared.Values[string, dirwatch.Files[[]slot]] // by directory

// OpenCache returns the cache. It touches nothing. What is known of the files is shared
// with the other Caches of the directory.
func OpenCache(cacheDir string, records *record.Store, logger *slog.Logger) *Cache {
	dir := filepath.Join(cacheDir, "results")
	files := caches.Get(dir, func() *dirwatch.Files[[]slot] { return dirwatch.NewFiles[[]slot](dir, "", dirwatch.Open) })
	return &Cache{dir: dir, records: records, logger: logger, files: files}
}

// Find returns the attachments that are only in the cache and claim one of the wanted
// ports, by container and interface.
func (c *Cache) Find(wanted []ports.Claim) (found []Cached, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	names, err := having(c.files, wanted, func(name string) ([]slot, bool) {
		data, sure := c.read(name)
		return slotsIn(data), sure
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, _ := c.read(name)
		if a := c.parse(data); ports.Overlap(a.Claims, wanted) && !c.isRecorded(a.ContainerID) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b Cached) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return found, nil
}

// isRecorded reports whether there is a record of a container. Until its DEL has ended, a
// container is on record.
func (c *Cache) isRecorded(id string) bool {
	has, err := c.records.Exists(record.Name(record.ID(id)))
	return has || err != nil
}

// read returns the content of a file. Nobody may be refused a port because of one that
// cannot be read.
func (c *Cache) read(name string) (data []byte, sure bool) {
	path := filepath.Join(c.dir, name)
	data, err := plainfile.Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.logger.Debug("the ports of the host that a container in libcni's cache has are not known", "file", path, "error", err)
	}
	return data, true
}

// parse reads the content of a file. It returns the zero Cached if it is none of an
// attachment.
func (c *Cache) parse(data []byte) (a Cached) {
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
	return Cached{
		ContainerID: content.ContainerID, Network: content.NetworkName, IfName: content.IfName, NetNS: content.NetNS,
		Claims: Claims(&record.Attachment{Config: content.Config, Capabilities: content.CapabilityArgs}, &c.configs),
	}
}

// CachedConflict is a wanted port that an attachment has which is only in the cache.
type CachedConflict struct {
	Wanted, Claim ports.Claim
	Cached
	Lives bool // certainly, on this host; else it may be gone
}

// Conflicts returns a CachedConflict for each wanted port of each attachment that Find
// returns, except those of containers that known returns true for. With an error these are
// the ones that are known, and as far as is known.
func (c *Cache) Conflicts(host *hostns.NetNS, wanted []ports.Claim, known func(containerID string) bool) (found []CachedConflict, err error) {
	all, err := c.Find(wanted)
	for _, a := range all {
		if known(a.ContainerID) {
			continue
		}
		lives, lerr := a.livesOn(host)
		err = errors.Join(err, lerr)
		for _, w := range wanted {
			if i := slices.IndexFunc(a.Claims, w.Overlaps); i >= 0 {
				found = append(found, CachedConflict{w, a.Claims[i], a, lives})
			}
		}
	}
	return found, err
}

// livesOn reports whether the attachment certainly lives, and on this host: its path leads
// to a namespace in which its interface is one end of a pair, and the other end is here.
// The cache does not say from which namespace plugins ran.
func (a Cached) livesOn(host *hostns.NetNS) (bool, error) {
	if a.NetNS == "" {
		return false, nil
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return false, nil // gone, or out of reach
	}
	end, err := host.EndOf(ns, a.IfName)
	return end != 0, errors.Join(err, ns.Close())
}
