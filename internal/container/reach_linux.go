package container

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// reach opens the recorded namespace. Path becomes its recorded path if that
// still leads there, else the path at which it is kept (its pin, or kept), else
// empty. A path that leads to another namespace by now is another container's.
//
// If no path leads there, a live container may still be in the namespace: in the
// mount namespace of a restarted program both paths can be empty files. So reach
// searches the visible processes for it.
func (p *Place) reach(rec *record.Record, kept string) error {
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
		case nsfind.LeadsNowhere(err):
		case err != nil: // matters if no other path leads there
			errs = append(errs, err)
		case found.ID() == ns.ID():
			if rec.LetGo != nil && place.how == ByPath {
				if same, err := p.hasRecorded(found, rec); err != nil || !same {
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
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return p.reachByProcess(rec)
}

// reachByProcess is reach if no path leads to the namespace.
func (p *Place) reachByProcess(rec *record.Record) error {
	want := rec.NetNS.ID()
	if want.Ino == 0 {
		return nil
	}
	if whose, err := p.Host.WhoseHost(want, ""); whose != "" || err != nil {
		return err // the host's namespace has its number now
	}
	found, err := nsfind.OpenInhabited(want)
	if found == nil || err != nil {
		return err
	}
	return p.reachHeld(rec, found)
}

// reachHeld enters a namespace with the recorded number, which a process is in or refers
// to, if it is the recorded one.
func (p *Place) reachHeld(rec *record.Record, found *netns.Handle) error {
	same, err := p.hasRecorded(found, rec)
	if err != nil || !same {
		p.Reached = Unsure
		return errors.Join(err, found.Close())
	}
	// The path is not the process's own: if the process ends meanwhile, its path
	// could become another's.
	p.NetNS, p.Path, p.Reached = found, nsfind.DescriptorPath(found), ByProcess
	return nil
}

// hasRecorded reports whether the namespace has an interface that the record
// lists in the container, by its name and hardware address. The kernel gives the
// number of a namespace that has ended to the next one, so only this
// distinguishes the two.
func (p *Place) hasRecorded(ns *netns.Handle, rec *record.Record) (yes bool, err error) {
	conn, err := p.Host.Conns.Borrow(ns)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, n := range rec.Attachments {
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

// settle decides about a namespace that was not reached. From another mount or PID
// namespace than the one of the record, that proves nothing: neither the path nor the pin
// may lead there from here, and no process of it may be seen.
//
// An interface's end on the host decides, because the kernel deletes it with the namespace:
// while it exists, the container lives. A container without such an end is gone if its path
// was recorded in this view, or if no reference to its namespace is left.
func (p *Place) settle(rec *record.Record) error {
	if p.NetNS != nil || p.HostGone {
		return nil
	}
	if rec.LetGo != nil {
		return p.settleLetGo(rec)
	}
	if p.Reached != NotReached {
		return nil
	}
	lives, ended, err := p.hostEnds(rec)
	switch {
	case err != nil:
		return fmt.Errorf("look for the host's end of an interface of container %s: %w", rec.ContainerID, err)
	case lives:
		p.Reached = Elsewhere
	case !ended && !p.isRecordedHere(rec):
		return p.reachByReference(rec)
	}
	return nil
}

// settleLetGo finds out whether a namespace that the runtime let go, and to
// which no path leads, has ended. The kernel may have given its number to
// another namespace. So once its interfaces have vanished it has ended, even if
// a process is in a namespace with that number.
func (p *Place) settleLetGo(rec *record.Record) error {
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

// reachByReference is reach if neither a path nor a process of this view leads to the
// namespace, and the host does not show whether it lives. It looks at all that visible
// processes refer to: their mounts and descriptors.
func (p *Place) reachByReference(rec *record.Record) error {
	want := rec.NetNS.ID()
	if want.Ino == 0 {
		return nil // a damaged record
	}
	var found *netns.Handle
	complete, err := proc.EachPath("/proc", want.String(), func(path string) bool {
		ns, err := netns.Open(path)
		if err == nil && ns.ID() != want {
			_ = ns.Close() // was only looked at
		} else if err == nil {
			found = ns
		}
		return found != nil
	})
	switch {
	case err != nil:
		return err
	case found != nil:
		return p.reachHeld(rec, found)
	case !complete || !proc.SeesAll(rec.PIDNS):
		p.Reached = Unsure
	}
	return nil
}

// isInhabited reports whether there is, or may be, a process in the container's
// namespace.
func (p *Place) isInhabited() bool {
	all, err := nsfind.Inhabitants()
	return err != nil || p.NetNS != nil && len(all[p.NetNS.ID()]) > 0
}

// Gone reports whether nothing leads to the recorded namespace any more.
func (p *Place) Gone() bool {
	return p.NetNS == nil && p.Reached == NotReached
}

// isRecordedHere reports whether the recorded path leads from here to where it led from
// where it was recorded. Records of earlier versions do not say where that was.
func (p *Place) isRecordedHere(rec *record.Record) bool {
	return rec.NetNS.View == "" || rec.NetNS.View == nsfind.View()
}
