package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
)

// mendError means that a DEL also deleted rules of another attachment of the
// container, and that they could not be made again.
type mendError struct {
	network, ifName string
	err             error
}

func (m *mendError) Error() string {
	return fmt.Sprintf("rules of interface %s on network %q, which stays, went too and could not be made again: %v", m.ifName, m.network, m.err)
}

func (m *mendError) Unwrap() error { return m.err }

// mend makes the rules again that the DEL of an executable has deleted from the
// attachment's siblings. It needs only their records, so a removal that is repeated
// after a crash makes them too.
func (a *attachment) mend(ctx context.Context, typ string) error {
	deleted := known.Of(typ).Rules
	if deleted != known.HostPorts && deleted != known.Masquerade {
		return nil
	}
	if a.isBuiltIn(typ) || a.isCallers(typ) {
		return nil // built-in plugins leave a sibling's rules; the rules of others are unknown
	}
	return a.mendAll(ctx, func(b *attachment, w wanted) bool {
		sameKind := known.Of(w.typ).Rules == deleted
		switch w.backend {
		case netfilter.IPTables:
			return sameKind && b.network.config.Name == a.network.config.Name
		case netfilter.NFTables:
			return sameKind && deleted == known.HostPorts // the comment is the container's ID on every network
		}
		return false
	})
}

// inherit makes the siblings' missing host ports again in this module's own table.
// A sibling may forward the same port of the host as the attachment that was removed.
func (a *attachment) inherit(ctx context.Context) error {
	return a.mendAll(ctx, func(_ *attachment, w wanted) bool {
		return known.Of(w.typ).Rules == known.HostPorts && w.backend == netfilter.Native
	})
}

// mendAll makes the missing ones among the siblings' rules for which pick returns
// true. It does nothing for a container whose namespace is gone.
func (a *attachment) mendAll(ctx context.Context, pick func(*attachment, wanted) bool) error {
	if a.op.hostGone || a.op.host.Handle == nil || a.op.rec != nil && !a.op.damaged && a.op.gone() {
		return nil
	}
	all, err := a.siblings()
	errs := []error{err}
	for _, b := range all {
		if a.op.rec != nil && !a.op.damaged && b.state != record.Added {
			continue // it is being removed, or its ADD will make its rules
		}
		wants, err := b.wants()
		if err != nil {
			errs = append(errs, &mendError{b.network.config.Name, b.IfName, err})
		}
		for _, w := range wants {
			if !pick(b, w) {
				continue
			}
			if err := b.makeAgain(ctx, w); err != nil {
				errs = append(errs, &mendError{b.network.config.Name, b.IfName, err})
			}
		}
	}
	if err = join(errs...); err != nil {
		return a.error("DEL", err)
	}
	return nil
}

// makeAgain makes the rules unless they are all there.
func (a *attachment) makeAgain(ctx context.Context, w wanted) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTime)
	defer cancel()
	ctx = batch.With(caller.With(ctx, a), nil)
	options := caller.Netfilter(ctx)
	options.Siblings = a.sharing
	fw := netfilter.Open(a.op.host.Handle, options)
	options.AnyForm = true
	unsure := netfilter.Open(a.op.host.Handle, options)
	for i := range w.rules.HostPorts {
		if w.backend != netfilter.IPTables {
			h := &w.rules.HostPorts[i]
			h.ConditionsV4, h.ConditionsV6 = nil, nil // in nftables, all containers share the conditions
			h.MasqAll = h.MasqAll && a.isBuiltIn(w.typ)
		}
	}
	if fw.Check(ctx, w.backend, w.rules) == nil || w.unsure && unsure.Check(ctx, netfilter.Native, w.rules) == nil {
		return nil
	}
	a.op.logger.Info("making rules again that the removal of another attachment has deleted", "container", a.op.id,
		"network", a.network.config.Name, "interface", a.IfName, "plugin", w.typ)
	return fw.Add(ctx, w.backend, w.rules)
}
