package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// reach opens the recorded namespace. Path becomes its recorded path if that
// still leads there, else the path at which it is kept (its pin, or kept), else
// empty. A path that leads to another namespace by now is another container's.
//
// If no path leads there, a live container may still be in the namespace: in the
// mount namespace of a restarted program both paths can be empty files. So reach
// searches the visible processes for it.
func (p *Place) reach(kept string) error {
	rec := p.of.Record
	ns := rec.NetNS
	var errs []error
	for _, place := range []struct {
		path string
		how  Reached
	}{{ns.Path, ByPath}, {ns.Pin, ByPin}, {kept, ByPin}} {
		if place.path == "" {
			continue
		}
		found, err := netns.Open(place.path)
		switch {
		case LeadsNowhere(err):
		case err != nil: // matters if no other path leads there
			errs = append(errs, err)
		case found.ID() == ns.ID():
			if rec.LetGo != nil && place.how == ByPath {
				if same, err := p.hasRecorded(found); err != nil || !same {
					errs = append(errs, err, found.Close()) // another namespace has its number now
					continue
				}
			}
			p.NetNS, p.Path, err = p.Host.Checked(found, place.path)
			p.Reached = place.how
			return err
		default:
			errs = append(errs, found.Close())
		}
	}
	if err := joined.Errors(errs...); err != nil {
		return err
	}
	want := ns.ID()
	if want.Ino == 0 {
		return nil // a damaged record
	}
	if whose, err := p.Host.WhoseHost(want, ""); whose != "" || err != nil {
		return err // the host's namespace has its number now
	}
	_, err := p.search(proc.Thread)
	return err
}

// search enters the recorded namespace if a process of this view is in it or refers to it.
// One that only has the recorded number may be another. complete reports that every process
// could be looked at.
func (p *Place) search(by proc.RefKind) (complete bool, err error) {
	found, complete, err := search(p.of.Record.NetNS.ID(), by)
	if found == nil || err != nil {
		return complete, err
	}
	same, err := p.hasRecorded(found)
	if err != nil || !same {
		p.Reached = Unsure
		return complete, joined.Errors(err, found.Close())
	}
	// The path is not the process's own: if the process ends meanwhile, its path
	// could become another's.
	p.NetNS, p.Path, p.Reached = found, descriptorPath(found), ByProcess
	return complete, nil
}

// hasRecorded reports whether the namespace has an interface that the record
// lists in the container, by its name and hardware address. The kernel gives the
// number of a namespace that has ended to the next one, so only this
// distinguishes the two.
func (p *Place) hasRecorded(ns *netns.Handle) (bool, error) {
	for _, n := range p.of.Record.Attachments {
		for _, i := range chain.Interfaces(n.Result, nil) {
			mac, err := net.ParseMAC(i.Mac)
			if i.Sandbox == "" || err != nil || len(bytes.Trim(mac, "\x00")) == 0 {
				continue
			}
			l, err := p.Host.Conns.Lookup(ns, i.Name)
			if err != nil {
				return false, err
			}
			if l != nil && bytes.Equal(l.MAC, mac) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Settle decides about a namespace that was not reached. From another mount or PID
// namespace than the one of the record, that proves nothing: neither the path nor the pin
// may lead there from here, and no process of it may be seen.
//
// An interface's end on the host decides, because the kernel deletes it with the namespace:
// while it exists, the container lives. A container without such an end is gone if its path
// was recorded in this view, or if no reference to its namespace is left.
//
// Of a damaged record, only the legible part names the interfaces.
func (p *Place) Settle() error {
	rec := p.of.Record
	if p.NetNS != nil || p.HostGone {
		return nil
	}
	if rec.LetGo != nil {
		return p.settleLetGo()
	}
	if p.Reached != NotReached {
		return nil
	}
	lives, ended, err := p.hostEnds()
	switch {
	case err != nil:
		return fmt.Errorf("look for the host's end of an interface of container %s: %w", rec.ContainerID, err)
	case lives:
		p.Reached = Elsewhere
	case !ended && !p.isRecordedHere() && rec.NetNS.Ino != 0:
		// Neither a path nor a process of this view leads there. Their mounts and
		// descriptors may refer to it.
		complete, err := p.search(proc.Any)
		if p.Reached == NotReached && err == nil && !(complete && proc.SeesAll(rec.PIDNS)) {
			p.Reached = Unsure
		}
		return err
	}
	return nil
}

// settleLetGo finds out whether a namespace that the runtime let go, and to
// which no path leads, has ended. The kernel may have given its number to
// another namespace. So once its interfaces have vanished it has ended, even if
// a process is in a namespace with that number.
func (p *Place) settleLetGo() error {
	rec := p.of.Record
	left, err := p.Host.Lasting(rec.LetGo.Ends)
	if err != nil {
		return fmt.Errorf("check whether the network namespace of container %s has ended: %w", rec.ContainerID, err)
	}
	switch {
	case len(left) == 0:
		p.Reached = NotReached
	case p.Reached == NotReached:
		p.Reached = LetGo
	}
	return nil
}

// isInhabited reports whether there is, or may be, a process in the container's
// namespace.
func (p *Place) isInhabited() bool {
	all, err := inhabited()
	return err != nil || p.NetNS != nil && all[p.NetNS.ID().Ino]
}

// Gone reports whether nothing leads to the recorded namespace any more.
func (p *Place) Gone() bool {
	return p.NetNS == nil && p.Reached == NotReached
}

// isRecordedHere reports whether the recorded path leads from here to where it led from
// where it was recorded. Records of earlier versions do not say where that was.
func (p *Place) isRecordedHere() bool {
	view := p.of.Record.NetNS.View
	return view == "" || view == View()
}

// AwaitEnd waits until a container that lives elsewhere has ended, but not beyond a time.
// The kernel ends a namespace some time after the last process that referred to it, so a
// daemon's containers may outlive it for a moment.
func (p *Place) AwaitEnd(ctx context.Context, until time.Time) error {
	if p.Reached != Elsewhere {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	_, err := p.Host.Until(ctx, func() (bool, error) {
		p.Reached = NotReached
		err := p.Settle()
		return p.Reached != Elsewhere, err
	})
	return err
}

// Remains looks for an attachment that is on no record, by its result: at the path of its
// namespace, and on the host. lives reports that it is there; ended, that it certainly is
// not. Neither is known of one that has no end on the host.
func Remains(host *Host, path string, of record.Attachment) (lives, ended bool, err error) {
	p := &Place{Host: host, of: &Recorded{Record: &record.Record{Attachments: []record.Attachment{of}}}}
	ns, err := netns.Open(path)
	if err == nil {
		lives, err = p.hasRecorded(ns)
		if err = joined.Errors(err, ns.Close()); lives || err != nil {
			return lives, false, err
		}
	} // else it leads nowhere from here, which the host's ends decide about
	return p.hostEnds()
}

// hostEnds asks the host for its ends of the container's interfaces, which the results on
// record name. lives reports that one of them exists, and the namespace of its other end
// too; ended, that none does although there was one.
func (p *Place) hostEnds() (lives, ended bool, err error) {
	c, err := p.Host.Conns.Borrow(p.Host.Handle)
	if err != nil {
		return false, false, err
	}
	defer func() { err = joined.Errors(err, c.Close()) }()
	all, err := c.Links()
	if err != nil {
		return false, false, err
	}
	for n := range p.of.Record.Present() {
		for _, end := range endsOf(n) {
			stays := false // it is the bridge, or another device that stays on the host
			for _, l := range all {
				named := l.Name == end.name || slices.Contains(l.Others, end.name)
				stays = stays || named && !l.Peer.Elsewhere
				if !l.Peer.Elsewhere || !named && !end.has(l) { // it may have been renamed
					continue
				}
				if lives, err := end.is(c, l); lives || err != nil {
					return lives, false, err
				}
			}
			ended = ended || !stays
		}
	}
	return false, ended, nil
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
	var inside []net.HardwareAddr
	for _, i := range chain.Interfaces(n.Result, n.PrevResult) {
		mac, err := net.ParseMAC(i.Mac)
		switch {
		case i.Sandbox == "" && err != nil:
			ends = append(ends, recordedEnd{name: i.Name})
		case i.Sandbox == "":
			ends = append(ends, recordedEnd{name: i.Name, mac: mac})
		case err == nil:
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
	peer, err := links.PeerLink(c, l)
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
