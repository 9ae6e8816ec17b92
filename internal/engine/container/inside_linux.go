package container

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/hostns"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Lives reports whether the namespace at an attachment's path exists and has the
// interface; an empty name asks for the namespace alone.
func (c *Container) Lives(path, ifName string) (bool, error) {
	if err := c.Uncertain(); err != nil {
		return false, err
	}
	if c.Place.Reached == Elsewhere {
		return !c.IsAbandoned(), nil
	}
	if path == "" || c.IsAbandoned() {
		return false, nil // gone, or kept by nobody but this library
	}
	ns := c.Place.Inside(path)
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
	return c.Place.Host.HasLink(ns, ifName)
}

// HasLink reports whether the open namespace has an interface of that name.
func (p *Place) HasLink(name string) (bool, error) { return p.Host.HasLink(p.NetNS, name) }

// HasNoDevice reports whether the namespace at an attachment's path is gone, or has no
// interface but those that every namespace has and those of the container's other
// attachments.
func (c *Container) HasNoDevice(path, ifName string) bool {
	ns := c.Place.Inside(path)
	if ns == nil {
		return path == ""
	}
	found, err := c.Place.Host.Conns.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		sibling := l.Name != ifName && c.Recorded.Record != nil && c.Recorded.Record.Find(l.Name) != nil
		return l.Flags&unix.IFF_LOOPBACK == 0 && !sibling && !l.IsFallback()
	})
}

// LoIsUp reports whether lo is up in the recorded namespace, if an attachment's path
// leads there.
func (c *Container) LoIsUp(path string) (up bool, err error) {
	err = c.withLo(path, func(_ *links.Conn, lo links.Link) error {
		up = lo.Up()
		return nil
	})
	return up, err
}

// SetLoUp sets lo up in the recorded namespace, if an attachment's path leads there.
func (c *Container) SetLoUp(path string) error {
	return c.withLo(path, func(conn *links.Conn, lo links.Link) error {
		if lo.Up() {
			return nil
		}
		return conn.Change(lo.Index, links.Change{Set: unix.IFF_UP})
	})
}

// withLo does nothing unless the namespace is the recorded one: the path may lead to
// another container's.
func (c *Container) withLo(path string, do func(*links.Conn, links.Link) error) error {
	ns := c.Place.Inside(path)
	if ns == nil || c.Recorded.Record == nil || ns.ID() != c.Recorded.Record.NetNS.ID() {
		return nil
	}
	conn, err := c.Place.Host.Conns.Borrow(ns)
	if err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	lo, err := conn.Link("lo")
	if err == nil {
		err = do(conn, lo)
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	return nil
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
			if doubts && c.mayKeep(f.File, ns.ID()) {
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

// mayKeep reports whether the namespace may belong to a record of which only the
// file name is known.
func (c *Container) mayKeep(file string, ns netns.ID) bool {
	pinned, err := hostns.Identify(c.in.Pins.File(file))
	return err != nil || pinned == ns
}

// cached is Other for containers that only libcni's cache knows, such as
// go-cni's. A cached path can be stale too, so the interface must also exist.
func (c *Container) cached(ns *netns.Handle, cacheDir string, recorded map[record.PluginID]bool) (string, error) {
	all, err := libcni.NewCNIConfigWithCacheDir(nil, cacheDir, nil).GetCachedAttachments("")
	if err != nil {
		return "", fmt.Errorf("cached attachments: %w", err)
	}
	for _, a := range all {
		if recorded[record.PluginID(a.ContainerID)] || !hostns.LeadsTo(a.NetNS, ns) {
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
func Untouched(host *hostns.NetNS, ns *netns.Handle) bool {
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
