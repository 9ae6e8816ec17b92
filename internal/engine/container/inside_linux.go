package container

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Lives reports whether the namespace at an attachment's path exists and has the
// interface; an empty name asks for the namespace alone.
func (p *Place) Lives(path, ifName string) (bool, error) {
	if err := p.Uncertain(); err != nil {
		return false, err
	}
	if p.Reached == Elsewhere {
		return !p.IsAbandoned(), nil
	}
	if path == "" || p.IsAbandoned() {
		return false, nil // gone, or kept by nobody but this library
	}
	ns := p.Inside(path)
	if ns == nil {
		var err error
		ns, err = netns.Open(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer ns.Close() // only looked at
	}
	if ifName == "" {
		return true, nil
	}
	return p.Host.HasLink(ns, ifName)
}

// HasLink reports whether the open namespace has an interface of that name.
func (p *Place) HasLink(name string) (bool, error) { return p.Host.HasLink(p.NetNS, name) }

// HasNoDevice reports whether the namespace at an attachment's path is gone, or has no
// interface but those that every namespace has and those of the container's other
// attachments.
func (p *Place) HasNoDevice(path, ifName string) bool {
	ns := p.Inside(path)
	if ns == nil {
		return path == ""
	}
	found, err := p.Host.Conns.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		sibling := l.Name != ifName && p.of.Record != nil && p.of.Record.Find(l.Name) != nil
		return l.Flags&unix.IFF_LOOPBACK == 0 && !sibling && !l.IsFallback()
	})
}

// Lo reports whether lo is up in the recorded namespace, if an attachment's path leads
// there; it may lead to another container's. With set, Lo sets it up.
func (p *Place) Lo(path string, set bool) (up bool, err error) {
	ns := p.Inside(path)
	if ns == nil || p.of.Record == nil || ns.ID() != p.of.Record.NetNS.ID() {
		return false, nil
	}
	err = p.Host.Conns.Do(ns, func(conn *links.Conn) error {
		lo, err := conn.Link("lo")
		if up = lo.Up(); err == nil && set && !up {
			err = conn.Change(lo.Index, links.Change{Set: unix.IFF_UP})
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("interface lo: %w", err)
	}
	return up, err
}

// Other returns another container that is attached in the namespace, by the
// records or libcni's cache, and "" if there is none. It is for calls that have only
// a path, which may lead to another container's namespace by now. It reads all
// records. With doubts, an unreadable record counts if the namespace may be the one
// that is kept for it.
func (c *Container) Other(ns *netns.Handle, cacheDir string, doubts bool) (string, error) {
	boot, err := c.in.BootID()
	if err != nil {
		return "", err
	}
	found, err := c.in.Records.List()
	if err != nil {
		return "", err
	}
	own := c.Recorded.PluginID()
	recorded := map[record.PluginID]bool{record.PluginID(c.Recorded.ID): true, own: true}
	for _, f := range found {
		rec := f.Record
		switch {
		case rec != nil && (rec.ContainerID == c.Recorded.ID || record.PluginID(rec.ContainerID) == own):
		case rec == nil || f.Err != nil:
			if pinned, err := identify(c.in.Pins.File(f.File)); doubts && (err != nil || pinned == ns.ID()) {
				return "that of the record in file " + f.File, f.Err
			}
		default:
			recorded[rec.Plugins()] = true
			if rec.Boot == boot && rec.NetNS.ID() == ns.ID() {
				return string(rec.ContainerID), nil
			}
		}
	}
	return c.cached(ns, cacheDir, recorded)
}

// cached is Other for containers that only libcni's cache knows, such as
// go-cni's. A cached path can be stale too, so the interface must also exist.
func (c *Container) cached(ns *netns.Handle, cacheDir string, recorded map[record.PluginID]bool) (string, error) {
	all, err := libcni.NewCNIConfigWithCacheDir(nil, cacheDir, nil).GetCachedAttachments("")
	if err != nil {
		return "", fmt.Errorf("cached attachments: %w", err)
	}
	for _, a := range all {
		if recorded[record.PluginID(a.ContainerID)] || !leadsTo(a.NetNS, ns) {
			continue
		}
		if there, err := c.Place.Host.HasLink(ns, a.IfName); there || err != nil {
			return a.ContainerID, err
		}
	}
	return "", nil
}

// Untouched reports whether a DEL in the namespace can harm nobody: it has no
// interface but lo, and lo is down. Programs that remove a container before each
// Setup pass such a namespace. If no record keeps it, they need not wait until
// all records are read.
func Untouched(host *Host, ns *netns.Handle) bool {
	found, err := host.Conns.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		return l.Up() || l.Flags&unix.IFF_LOOPBACK == 0 && !l.IsFallback()
	})
}

// IsLocked reports whether a call for the container is in progress, in any process.
func (l *Locks) IsLocked(id record.ID) (bool, error) {
	state, err := l.State(lock.Byte(key(id)))
	return state != lock.Free, err
}
