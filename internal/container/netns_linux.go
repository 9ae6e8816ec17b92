package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Follow opens the container's namespace again if its path leads to another one
// by now, which can happen while the container is locked by another call.
func (c *Container) Follow() error {
	if c.NetNS == nil || nsfind.LeadsTo(c.Path, c.NetNS) {
		return nil
	}
	return c.OpenPath(c.Path, "ADD")
}

// identify returns the container's namespace for the record, with the path at which
// it will be kept.
func (c *Container) identify() (record.NetNS, error) {
	if err := c.Follow(); err != nil {
		return record.NetNS{}, fmt.Errorf("the container's network namespace: %w", err)
	}
	id := c.NetNS.ID()
	ns := record.NetNS{Path: c.Path, Dev: id.Dev, Ino: id.Ino, Pin: c.in.Pins.path(c.ID), View: nsfind.View()}
	ns.Ours = c.Ours || c.Record != nil && c.Record.NetNS.Ours
	if ns.Ours {
		ns.Pin = ""
	}
	return ns, nil
}

// SameNetNS refuses a path that does not lead to the recorded namespace: a
// container has one namespace, and the record could not find an attachment in
// another.
func (c *Container) SameNetNS(path string) error {
	if c.Record == nil {
		return nil
	}
	id, err := nsfind.Identify(path)
	if err != nil {
		return fmt.Errorf("the container's network namespace: %w: %w", err, hostns.ErrInvalid)
	}
	if id != identity(c.Record) {
		return fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w",
			path, c.Record.NetNS.Path, hostns.ErrInvalid)
	}
	return nil
}

func identity(rec *record.Record) netns.ID { return netns.ID{Dev: rec.NetNS.Dev, Ino: rec.NetNS.Ino} }

// Pin keeps the recorded namespace alive. It runs after the record is written,
// so that no pin is without a record.
func (c *Container) Pin() error {
	ns := c.Record.NetNS
	if ns.Ours && nsfind.LeadsTo(ns.Path, c.NetNS) {
		return nil // its path is a pin
	}
	if ns.Ours { // it was, in another mount namespace
		return netns.Pin(c.NetNS, ns.Path)
	}
	err := netns.Pin(c.NetNS, ns.Pin)
	if err == nil {
		return nil
	}
	c.in.Logger.Debug("the namespace is kept by an open descriptor only", "container", c.ID, "error", err)
	opened, err := netns.Open(ns.Path) // the container's own is closed with it
	if err != nil {
		return fmt.Errorf("keep the container's network namespace: %w: %w", err, hostns.ErrInvalid)
	}
	if id := opened.ID(); id != identity(c.Record) {
		return errors.Join(fmt.Errorf("%s has become another namespace, %s: %w", ns.Path, id, hostns.ErrInvalid), opened.Close())
	}
	return c.in.Pins.hold(c.ID, opened)
}

// Unpin stops keeping the namespace alive.
func (c *Container) Unpin() error { return c.in.Pins.release(c.ID) }

// PinnedHere reports whether the namespace is kept alive by a mount in this mount
// namespace, or by a descriptor of this process.
func (c *Container) PinnedHere() bool {
	return nsfind.LeadsTo(c.in.Pins.path(c.ID), c.NetNS) || c.in.Pins.openPath(c.ID) != ""
}

// removeOurs removes the namespace that a pool made for a container, if that one is
// still mounted there.
func removeOurs(ns record.NetNS) error {
	id, err := nsfind.Identify(ns.Path)
	switch {
	case errors.Is(err, netns.ErrNotNetNS): // the file, perhaps
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case id != netns.ID{Dev: ns.Dev, Ino: ns.Ino}:
		return nil
	}
	return netns.Remove(ns.Path)
}

// reach opens the recorded namespace. Path becomes its recorded path if that
// still leads there, else the path at which it is kept, else empty. A path that
// leads to another namespace by now is another container's.
//
// If no path leads there, a live container may still be in the namespace: in the
// mount namespace of a restarted program both paths can be empty files. So reach
// searches the visible processes for it.
func (c *Container) reach() error {
	ns := c.Record.NetNS
	var errs []error
	for _, place := range []struct {
		path string
		how  Reached
	}{{ns.Path, ByPath}, {ns.Pin, ByPin}, {c.in.Pins.openPath(c.ID), ByPin}} {
		if place.path == "" {
			continue
		}
		found, err := netns.Open(place.path)
		switch {
		case nsfind.LeadsNowhere(err):
		case err != nil: // matters if no other path leads there
			errs = append(errs, err)
		case found.ID() == identity(c.Record):
			if c.Record.LetGo != nil && place.how == ByPath {
				if same, err := c.hasRecorded(found); err != nil || !same {
					errs = append(errs, err, found.Close()) // another namespace has its number now
					continue
				}
			}
			c.NetNS, c.Path, err = c.Host.Checked(found, place.path)
			c.Reached = place.how
			return err
		default:
			errs = append(errs, found.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.reachByProcess()
}

// reachByProcess is reach if no path leads to the namespace.
func (c *Container) reachByProcess() error {
	want := identity(c.Record)
	if want.Ino == 0 {
		return nil
	}
	if whose, err := c.Host.WhoseHost(want, ""); whose != "" || err != nil {
		return err // the host's namespace has its number now
	}
	found, err := nsfind.OpenInhabited(want)
	if found == nil || err != nil {
		return err
	}
	same, err := c.hasRecorded(found)
	if err != nil || !same {
		c.Reached = Unsure
		return errors.Join(err, found.Close())
	}
	// The path is not the process's own: if the process ends meanwhile, its path
	// could become another's.
	c.NetNS, c.Path, c.Reached = found, nsfind.DescriptorPath(found), ByProcess
	return nil
}

// hasRecorded reports whether the namespace has an interface that the record
// lists in the container, by its name and hardware address. The kernel gives the
// number of a namespace that has ended to the next one, so only this
// distinguishes the two.
func (c *Container) hasRecorded(ns *netns.Handle) (yes bool, err error) {
	conn, err := c.Host.Conns.Borrow(ns)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, n := range c.Record.Attachments {
		result := chain.Decode(n.Result)
		if result == nil {
			continue
		}
		for _, i := range result.Interfaces {
			mac, err := net.ParseMAC(i.Mac)
			if i.Sandbox == "" || err != nil || len(bytes.Trim(mac, "\x00")) == 0 {
				continue
			}
			link, err := conn.Link(i.Name)
			if err != nil && !links.NotFound(err) {
				return false, err
			}
			if err == nil && bytes.Equal(link.MAC, mac) {
				return true, nil
			}
		}
	}
	return false, nil
}

// settleLetGo finds out whether a namespace that the runtime let go, and to
// which no path leads, has ended. The kernel may have given its number to
// another namespace. So once its interfaces have vanished it has ended, even if
// a process is in a namespace with that number.
func (c *Container) settleLetGo() error {
	if c.Record.LetGo == nil || c.NetNS != nil || c.HostGone {
		return nil
	}
	left, err := c.Host.Lasting(c.Record.LetGo.Ends)
	if err != nil {
		return fmt.Errorf("check whether the network namespace of container %s has ended: %w", c.ID, err)
	}
	switch {
	case len(left) == 0:
		c.Reached = NotReached
	case c.Reached == NotReached:
		c.Reached = LetGo
	}
	return nil
}

// isInhabited reports whether there is, or may be, a process in the container's
// namespace.
func (c *Container) isInhabited() bool {
	all, err := nsfind.Inhabitants()
	return err != nil || c.NetNS != nil && len(all[c.NetNS.ID()]) > 0
}

// Gone reports whether nothing leads to the recorded namespace any more.
func (c *Container) Gone() bool {
	return c.NetNS == nil && c.Reached != Unsure && c.Reached != LetGo
}
