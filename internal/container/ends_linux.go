package container

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// AwaitEnd waits until a container that lives elsewhere has ended, but not beyond a time.
// The kernel ends a namespace some time after the last process that referred to it, so a
// daemon's containers may outlive it for a moment.
func (c *Container) AwaitEnd(ctx context.Context, until time.Time) (err error) {
	if c.Reached != Elsewhere {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	watch, err := links.WatchAddresses(c.Host.Handle) // before anything vanishes
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watch.Close()) }()
	for {
		c.Reached = NotReached
		if err := c.settle(c.Record); err != nil || c.Reached != Elsewhere {
			return err
		}
		if err := watch.Wait(ctx); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// SettleDamaged finds out whether the container of a damaged record lives elsewhere. Only
// the legible part of the record names its interfaces.
func (c *Container) SettleDamaged() error { return c.settle(c.Record) }

// Remains looks for an attachment that is on no record, by its result: at the path of its
// namespace, and on the host. lives reports that it is there; ended, that it certainly is
// not. Neither is known of one that has no end on the host.
func Remains(host *hostns.NetNS, path string, of record.Attachment) (lives, ended bool, err error) {
	p, rec := &Place{Host: host}, &record.Record{Attachments: []record.Attachment{of}}
	ns, err := netns.Open(path)
	if err == nil {
		lives, err = p.hasRecorded(ns, rec)
		if err = errors.Join(err, ns.Close()); lives || err != nil {
			return lives, false, err
		}
	} // else it leads nowhere from here, which the host's ends decide about
	return p.hostEnds(rec)
}

// hostEnds asks the host for its ends of the container's interfaces, which the results on
// record name. lives reports that one of them exists, and the namespace of its other end
// too; ended, that none does although there was one.
func (p *Place) hostEnds(rec *record.Record) (lives, ended bool, err error) {
	c, err := p.Host.Conns.Borrow(p.Host.Handle)
	if err != nil {
		return false, false, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var missing []recordedEnd
	for i := range rec.Attachments {
		for _, end := range endsOf(&rec.Attachments[i]) {
			l, err := c.Link(end.name)
			switch {
			case links.NotFound(err):
				missing = append(missing, end)
				continue
			case err != nil:
				return false, false, err
			case !l.Peer.Elsewhere:
				continue // the bridge, or another device that stays on the host
			}
			if lives, err := end.is(c, l); lives || err != nil {
				return lives, false, err
			}
			missing = append(missing, end)
		}
	}
	if len(missing) == 0 {
		return false, false, nil
	}
	all, err := c.Links()
	if err != nil {
		return false, false, err
	}
	for _, end := range missing { // it may have been renamed
		for _, l := range all {
			if !l.Peer.Elsewhere || !end.has(l) {
				continue
			}
			if lives, err := end.is(c, l); lives || err != nil {
				return lives, false, err
			}
		}
	}
	return false, true, nil
}

// recordedEnd is an interface that a result lists on the host.
type recordedEnd struct {
	name   string
	mac    net.HardwareAddr   // nil if the result has none
	inside []net.HardwareAddr // of the interfaces that the result lists in the container
}

// endsOf returns the interfaces that an attachment's result lists on the host, but those
// that its first plugin was given.
func endsOf(n *record.Attachment) (ends []recordedEnd) {
	result, given := chain.Decode(n.Result), chain.Decode(n.PrevResult)
	if result == nil || n.State == record.Deleted {
		return nil
	}
	var inside []net.HardwareAddr
	for _, i := range result.Interfaces {
		mac, err := net.ParseMAC(i.Mac)
		if err != nil {
			mac = nil
		}
		switch {
		case given != nil && slices.ContainsFunc(given.Interfaces, func(g *types100.Interface) bool {
			return g.Name == i.Name && g.Sandbox == i.Sandbox
		}):
		case i.Sandbox == "":
			ends = append(ends, recordedEnd{name: i.Name, mac: mac})
		case mac != nil:
			inside = append(inside, mac)
		}
	}
	for i := range ends {
		ends[i].inside = inside
	}
	return ends
}

// has reports whether an interface has the recorded address.
func (e recordedEnd) has(l links.Link) bool { return e.mac != nil && slices.Equal(l.MAC, e.mac) }

// is reports whether an interface of the host with the recorded name or address is the
// recorded one, and the namespace of its other end exists. If neither end has a recorded
// address, it is somebody else's who has chosen the name. In doubt it is the recorded one.
func (e recordedEnd) is(c *links.Conn, l links.Link) (bool, error) {
	peer, err := c.PeerLink(l)
	switch {
	case links.NotFound(err):
		return false, nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES): // it exists, in another user namespace
		return true, nil
	case err != nil:
		return false, err
	}
	known := e.mac != nil && len(e.inside) > 0
	return !known || e.has(l) || slices.ContainsFunc(e.inside, func(mac net.HardwareAddr) bool { return slices.Equal(mac, peer.MAC) }), nil
}
