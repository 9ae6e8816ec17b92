package cni

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// loName is the only interface that exists before its attachment.
const loName = "lo"

// The DEL of the executable loopback sets lo down, even if lo was up before the
// ADD. Then something else uses it, so Remove sets it up again. The built-in
// plugin leaves such an lo alone.

// noteLo notes in the record whether lo is up.
func (a *attachment) noteLo() error {
	ns := a.recordedNetNS()
	if ns == nil {
		return nil
	}
	return a.withLo(ns, func(_ *links.Conn, lo links.Link) error {
		if !lo.Up() {
			return nil
		}
		return caller.NoteLoWasUp(a)
	})
}

// setLoUp sets lo up if it is down.
func (a *attachment) setLoUp() error {
	ns := a.recordedNetNS()
	if ns == nil {
		return nil
	}
	return a.withLo(ns, func(c *links.Conn, lo links.Link) error {
		if lo.Up() {
			return nil
		}
		return c.Change(lo.Index, links.Change{Set: unix.IFF_UP})
	})
}

// recordedNetNS returns the container's namespace if it is open and the recorded
// one: the attachment's path may lead to another container's.
func (a *attachment) recordedNetNS() *netns.Handle {
	ns, rec := a.inside(), a.op.Record
	if ns == nil || rec == nil || ns.ID() != (netns.ID{Dev: rec.NetNS.Dev, Ino: rec.NetNS.Ino}) {
		return nil
	}
	return ns
}

func (a *attachment) withLo(ns *netns.Handle, do func(*links.Conn, links.Link) error) error {
	c, err := a.op.Host.Conns.Borrow(ns)
	if err != nil {
		return fmt.Errorf("interface %s: %w", loName, err)
	}
	lo, err := c.Link(loName)
	if err == nil {
		err = do(c, lo)
	}
	if err = join(err, c.Close()); err != nil {
		return fmt.Errorf("interface %s: %w", loName, err)
	}
	return nil
}
