// Package tenant finds the container that a network namespace belongs to, by the
// records and by libcni's cache. It is for calls that have nothing but a path: the
// path may lead to another container's namespace by now.
package tenant

import (
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Search looks for other containers than one.
type Search struct {
	ID       record.ID // the container that is not looked for
	PluginID record.PluginID
	Boot     string // of the machine
	Records  *record.Store
	CacheDir string // libcni's
	Host     *hostns.NetNS
	// Pin returns the path at which the namespace of a record is kept, by the name
	// of the record's file.
	Pin func(file string) string
}

// Other returns another container that is attached in the namespace, as far as
// records or libcni's cache say, and "" if there is none. It reads all records. With
// doubts, a record that cannot be read counts if the namespace may be the one that
// is kept for it.
func (s Search) Other(ns *netns.Handle, doubts bool) (string, error) {
	found, err := s.Records.List()
	if err != nil {
		return "", err
	}
	recorded := map[record.PluginID]bool{record.PluginID(s.ID): true, s.PluginID: true}
	for _, f := range found {
		rec := f.Record
		switch {
		case rec != nil && (rec.ContainerID == s.ID || record.PluginID(rec.ContainerID) == s.PluginID):
		case rec == nil || f.Err != nil:
			if doubts && s.mayKeep(f.File, ns.ID()) {
				return "that of the record in file " + f.File, f.Err
			}
		default:
			recorded[rec.Plugins()] = true
			if rec.Boot == s.Boot && (netns.ID{Dev: rec.NetNS.Dev, Ino: rec.NetNS.Ino}) == ns.ID() {
				return string(rec.ContainerID), nil
			}
		}
	}
	return s.cached(ns, recorded)
}

// mayKeep reports whether the namespace may be that of a record of which only the
// file's name is known.
func (s Search) mayKeep(file string, ns netns.ID) bool {
	pinned, err := nsfind.Identify(s.Pin(file))
	return err != nil || pinned == ns
}

// cached is Other for containers that only libcni's cache knows, as go-cni attaches
// them. A cached path can be out of date too, so the interface must be there as well.
func (s Search) cached(ns *netns.Handle, recorded map[record.PluginID]bool) (string, error) {
	all, err := libcni.NewCNIConfigWithCacheDir(nil, s.CacheDir, nil).GetCachedAttachments("")
	if err != nil {
		return "", fmt.Errorf("cached attachments: %w", err)
	}
	for _, c := range all {
		if recorded[record.PluginID(c.ContainerID)] || !nsfind.LeadsTo(c.NetNS, ns) {
			continue
		}
		if there, err := s.Host.HasLink(ns, c.IfName); there || err != nil {
			return c.ContainerID, err
		}
	}
	return "", nil
}

// Untouched reports whether no DEL can take anything from anybody in a namespace:
// it has no interface but lo, and that is down. Programs that remove a container
// before each Setup pass such a namespace, and need not wait until all records are
// read if none of them keeps it.
func Untouched(host *hostns.NetNS, ns *netns.Handle) bool {
	found, err := host.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		return l.Up() || l.Flags&unix.IFF_LOOPBACK == 0 && !l.IsFallback()
	})
}
