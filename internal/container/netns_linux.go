package container

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Follow opens the container's namespace again if its path leads to another one
// by now, which can happen while the container is locked by another call.
func (c *Container) Follow() error {
	if c.NetNS == nil || c.fresh.isComing() || nsfind.LeadsTo(c.Path, c.NetNS) {
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
	if c.Record != nil && c.Record.NetNS.Ours {
		return c.Record.NetNS, nil // whichever path leads there from the caller
	}
	id := c.NetNS.ID()
	ns := record.NetNS{Path: c.Path, Dev: id.Dev, Ino: id.Ino, Pin: c.in.Pins.path(c.ID), View: nsfind.View()}
	return ns, c.fresh.identify(&ns)
}

// SameNetNS refuses a path that does not lead to the recorded namespace: a
// container has one namespace, and the record could not find an attachment in
// another.
func (r *Recorded) SameNetNS(path string) error {
	if r.Record == nil {
		return nil
	}
	id, err := nsfind.Identify(path)
	if err != nil {
		return fmt.Errorf("the container's network namespace: %w: %w", err, hostns.ErrInvalid)
	}
	if id != r.Record.NetNS.ID() {
		return fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w",
			path, r.Record.NetNS.Path, hostns.ErrInvalid)
	}
	return nil
}

// Pin keeps the recorded namespace alive. It runs after the record is written,
// so that no pin is without a record.
func (c *Container) Pin() error {
	ns := c.Record.NetNS
	switch {
	case c.fresh.isComing():
		return c.pinFresh()
	case ns.Ours && ns.Pin == "" && nsfind.LeadsTo(ns.Path, c.NetNS):
		return nil // its path is a pin
	case ns.Ours && (ns.Pin == "" || isFile(ns.Path, ns.File)):
		// It was, in another mount namespace.
		if err := netns.Pin(c.NetNS, ns.Path); err != nil || ns.Pin == "" {
			return err
		}
	}
	err := c.in.Pins.mount(c.NetNS, ns.Pin)
	if err == nil {
		return nil
	}
	c.in.Logger.Debug("the namespace is kept by an open descriptor only", "container", c.ID, "error", err)
	opened, err := netns.Open(ns.Path) // the container's own is closed with it
	if err != nil {
		return fmt.Errorf("keep the container's network namespace: %w: %w", err, hostns.ErrInvalid)
	}
	if id := opened.ID(); id != c.Record.NetNS.ID() {
		return errors.Join(fmt.Errorf("%s has become another namespace, %s: %w", ns.Path, id, hostns.ErrInvalid), opened.Close())
	}
	return c.in.Pins.hold(c.ID, opened)
}

// Unpin stops keeping the namespace alive.
func (c *Container) Unpin() error { return c.in.Pins.release(c.ID) }
