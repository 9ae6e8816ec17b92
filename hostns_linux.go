package cni

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// lives reports whether an attachment is alive: its namespace exists and has the
// interface. Every namespace has a loopback interface, so lo is alive if an
// attachment of the same Setup is, or without one if the namespace exists.
func (a *attachment) lives(all []*attachment) (bool, error) {
	if err := a.op.Uncertain(); err != nil {
		return false, err
	}
	if a.NetNS == "" || a.op.IsAbandoned() {
		return false, nil // gone, or only this library still keeps it
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
		return true, nil // an interface that was never made cannot be missing
	}
	if a.IfName != "lo" {
		return a.op.Host.HasLink(ns, a.IfName)
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

// taken reports whether the namespace has an interface of that name.
func (a *attachment) taken() (bool, error) {
	return a.op.Host.HasLink(a.op.NetNS, a.IfName)
}

// hasNoDevice reports whether the container's namespace is gone, or has no
// interfaces except those of every namespace and those of the container's other
// attachments.
func (a *attachment) hasNoDevice() bool {
	ns := a.inside()
	if ns == nil {
		return a.NetNS == ""
	}
	found, err := a.op.Host.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		sibling := l.Name != a.IfName && a.op.Record != nil && a.op.Record.Find(l.Name) != nil
		return l.Flags&unix.IFF_LOOPBACK == 0 && !sibling && !l.IsFallback()
	})
}

// prepare begins to open the sockets that an ADD needs in the container, while
// the record is written.
func (op *operation) prepare() {
	wanted := slices.ContainsFunc(op.attachments, func(a *attachment) bool {
		if a.makesInterface() {
			return true
		}
		p, err := op.runner.Find(a.network.config.Plugins[0].Network.Type)
		return err == nil && p.Kind == runner.BuiltIn
	})
	if wanted && op.NetNS != nil {
		op.Host.Conns.Prepare(op.NetNS)
	}
}

// share lets the built-in plugins and the sweep use the same sockets. Processes
// that they start inherit the container's lock, as plugins do.
func (op *operation) share(ctx context.Context) context.Context {
	return caller.WithNetfilter(links.WithConns(ctx, &op.Host.Conns), func(o *netfilter.Options) {
		o.Sockets = op.sockets
		if file := op.LockFile(); file != nil {
			o.Held = file
		}
	})
}
