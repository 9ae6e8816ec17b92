package container

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// Lives reports whether the namespace at an attachment's path exists and has the
// interface; an empty name asks for the namespace alone.
func (c *Container) Lives(path, ifName string) (bool, error) {
	if err := c.Uncertain(); err != nil {
		return false, err
	}
	if c.Reached == Elsewhere {
		return !c.IsAbandoned(), nil
	}
	if path == "" || c.IsAbandoned() {
		return false, nil // gone, or kept by nobody but this library
	}
	ns := c.Inside(path)
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
	return c.Host.HasLink(ns, ifName)
}

// HasLink reports whether the open namespace has an interface of that name.
func (p *Place) HasLink(name string) (bool, error) { return p.Host.HasLink(p.NetNS, name) }

// HasNoDevice reports whether the namespace at an attachment's path is gone, or has no
// interface but those that every namespace has and those of the container's other
// attachments.
func (c *Container) HasNoDevice(path, ifName string) bool {
	ns := c.Inside(path)
	if ns == nil {
		return path == ""
	}
	found, err := c.Host.Conns.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		sibling := l.Name != ifName && c.Record != nil && c.Record.Find(l.Name) != nil
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
	ns := c.Inside(path)
	if ns == nil || c.Record == nil || ns.ID() != c.Record.NetNS.ID() {
		return nil
	}
	conn, err := c.Host.Conns.Borrow(ns)
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
