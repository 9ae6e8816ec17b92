package cni

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// follow opens the namespace again if the path has become another's since, as it
// may while the container is locked by another call.
func (op *operation) follow() error {
	if op.container == nil || nsfind.LeadsTo(op.path, op.container) {
		return nil
	}
	op.leave()
	var err error
	op.container, op.path, err = op.host.OpenContainer(op.path, op.verb)
	return err
}

// openRecorded opens a recorded namespace, and returns with it what plugins are
// told of it: its path if that still leads there, else where it is kept, else
// nothing. A path that leads to another namespace by now is another container's.
//
// Where neither leads there, the namespace may still be a container's that lives:
// in the mount namespace of a program that was restarted both can be empty files.
// So it is looked for among the processes that can be seen.
func openRecorded(h *hostns.NetNS, rec *record.Record, kept string) (*netns.Handle, string, reached, error) {
	ns := rec.NetNS
	want := netns.ID{Dev: ns.Dev, Ino: ns.Ino}
	var errs []error
	for _, place := range []struct {
		path string
		how  reached
	}{{ns.Path, byPath}, {ns.Pin, byPin}, {kept, byPin}} {
		if place.path == "" {
			continue
		}
		found, err := netns.Open(place.path)
		switch {
		case nsfind.LeadsNowhere(err):
		case err != nil: // matters if no other path leads there
			errs = append(errs, err)
		case found.ID() == want:
			if rec.LetGo != nil && place.how == byPath {
				if same, err := hasRecorded(h, found, rec); err != nil || !same {
					errs = append(errs, err, found.Close()) // another namespace has its number now
					continue
				}
			}
			found, path, err := h.Checked(found, place.path)
			return found, path, place.how, err
		default:
			errs = append(errs, found.Close())
		}
	}
	if err := join(errs...); err != nil {
		return nil, "", notReached, err
	}
	return openByProcess(h, rec, want)
}

// openByProcess is openRecorded where no path leads to the namespace.
func openByProcess(h *hostns.NetNS, rec *record.Record, want netns.ID) (*netns.Handle, string, reached, error) {
	if want.Ino == 0 {
		return nil, "", notReached, nil
	}
	if whose, err := h.WhoseHost(want, ""); whose != "" || err != nil {
		return nil, "", notReached, err // the host's namespace has its number now
	}
	found, err := nsfind.OpenInhabited(want)
	if found == nil || err != nil {
		return nil, "", notReached, err
	}
	same, err := hasRecorded(h, found, rec)
	if err != nil || !same {
		return nil, "", unsure, join(err, found.Close())
	}
	// Not the process's own path: should the process end meanwhile, that could
	// become another's.
	return found, nsfind.DescriptorPath(found), byProcess, nil
}

// hasRecorded reports whether there is an interface in the namespace that the
// record says is in the container, by its name and hardware address. The kernel
// gives the number of a namespace that has ended to the next one, so this is how
// one is told from the other.
func hasRecorded(h *hostns.NetNS, ns *netns.Handle, rec *record.Record) (yes bool, err error) {
	c, err := h.Conns.Borrow(ns)
	if err != nil {
		return false, err
	}
	defer func() { err = join(err, c.Close()) }()
	for _, n := range rec.Networks {
		result := chain.Decode(n.Result)
		if result == nil {
			continue
		}
		for _, i := range result.Interfaces {
			mac, err := net.ParseMAC(i.Mac)
			if i.Sandbox == "" || err != nil || len(bytes.Trim(mac, "\x00")) == 0 {
				continue
			}
			link, err := c.Link(i.Name)
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

// inhabited reports whether there is a process in the container's namespace, or
// may be.
func (op *operation) inhabited() bool {
	all, err := nsfind.Inhabitants()
	return err != nil || op.container != nil && len(all[op.container.ID()]) > 0
}

// gone reports whether nothing leads to the recorded namespace any more.
func (op *operation) gone() bool {
	return op.container == nil && op.reached != unsure && op.reached != letGo
}

// lives tells whether an attachment still is: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo lives as long as
// what was attached with it, or as the namespace if that is all there was.
func (a *attachment) lives(all []*attachment) (bool, error) {
	if err := a.op.uncertain(); err != nil {
		return false, err
	}
	if a.NetNS == "" || a.op.abandoned() {
		return false, nil // gone, or nobody's but ours any more
	}
	ns := a.inside()
	if ns == nil {
		var err error
		ns, err = netns.Open(a.NetNS)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer ns.Close() // only looked at
	}
	if !a.madeInterface() {
		return true, nil // what was never made cannot be missed
	}
	if a.IfName != "lo" {
		return a.op.host.HasLink(ns, a.IfName)
	}
	alone := true
	for _, other := range all {
		if other.IfName == "lo" {
			continue
		}
		alone = false
		if live, err := other.lives(nil); live || err != nil {
			return live, err
		}
	}
	return alone, nil
}

// taken tells whether the namespace has an interface of that name.
func (a *attachment) taken() (bool, error) {
	return a.op.host.HasLink(a.op.container, a.IfName)
}

// hasNoDevice reports whether the container's namespace is gone, or has no
// interface but those that every namespace has and those of the container's other
// attachments.
func (a *attachment) hasNoDevice() bool {
	ns := a.inside()
	if ns == nil {
		return a.NetNS == ""
	}
	found, err := a.op.host.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		sibling := l.Name != a.IfName && a.op.rec != nil && a.op.rec.Find(l.Name) != nil
		return l.Flags&unix.IFF_LOOPBACK == 0 && !sibling && !l.IsFallback()
	})
}

// prepare begins to open what an ADD needs in the container, while the record is
// written.
func (op *operation) prepare() {
	wanted := slices.ContainsFunc(op.attachments, func(a *attachment) bool {
		if a.makesInterface() {
			return true
		}
		p, err := op.runner.Find(a.network.config.Plugins[0].Network.Type)
		return err == nil && p.Kind == runner.BuiltIn
	})
	if wanted && op.container != nil {
		op.host.Conns.Prepare(op.container)
	}
}

// share has the plugins built in, and the sweep, use the same sockets, and what
// they start keep the container's lock, as plugins do.
func (op *operation) share(ctx context.Context) context.Context {
	return caller.WithNetfilter(links.WithConns(ctx, &op.host.Conns), func(o *netfilter.Options) {
		o.Sockets = op.sockets
		if op.held != nil {
			o.Held = op.held.File()
		}
	})
}
