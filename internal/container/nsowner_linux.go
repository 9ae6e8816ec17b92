package container

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

// Other returns another container that is attached in the namespace, by the
// records or libcni's cache, and "" if there is none. It reads all records. With
// doubts, an unreadable record counts if the namespace may be the one that is
// kept for it.
func (s NetNSOwner) Other(ns *netns.Handle, doubts bool) (string, error) {
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
			if rec.Boot == s.Boot && rec.NetNS.ID() == ns.ID() {
				return string(rec.ContainerID), nil
			}
		}
	}
	return s.cached(ns, recorded)
}

// mayKeep reports whether the namespace may belong to a record of which only the
// file name is known.
func (s NetNSOwner) mayKeep(file string, ns netns.ID) bool {
	pinned, err := nsfind.Identify(s.Pin(file))
	return err != nil || pinned == ns
}

// cached is Other for containers that only libcni's cache knows, such as
// go-cni's. A cached path can be stale too, so the interface must also exist.
func (s NetNSOwner) cached(ns *netns.Handle, recorded map[record.PluginID]bool) (string, error) {
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

// Untouched reports whether a DEL in the namespace can harm nobody: it has no
// interface but lo, and lo is down. Programs that remove a container before each
// Setup pass such a namespace. If no record keeps it, they need not wait until
// all records are read.
func Untouched(host *hostns.NetNS, ns *netns.Handle) bool {
	found, err := host.Conns.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		return l.Up() || l.Flags&unix.IFF_LOOPBACK == 0 && !l.IsFallback()
	})
}
