package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/record"
)

// mendError means that a DEL also deleted rules of another attachment of the
// container, and that restoring them failed.
type mendError struct {
	network, ifName string
	err             error
}

func (m *mendError) Error() string {
	return fmt.Sprintf("rules of interface %s on network %q, which stays, went too and could not be made again: %v", m.ifName, m.network, m.err)
}

func (m *mendError) Unwrap() error { return m.err }

// mend restores the rules of the attachment's siblings that the DEL of an
// executable has deleted. It needs only their records, so a removal that is
// repeated after a crash restores them too.
func (a *attachment) mend(ctx context.Context, typ string) error {
	deleted := known.Of(typ).Rules
	if deleted != known.HostPorts && deleted != known.Masquerade {
		return nil
	}
	if a.described().IsBuiltIn(typ) || a.described().IsCallers(typ) {
		return nil // built-in plugins leave a sibling's rules; the rules of others are unknown
	}
	return a.mendAll(ctx, func(b *attachment, w footprint.Wanted) bool {
		sameKind := known.Of(w.Type).Rules == deleted
		switch w.Backend {
		case fwrules.IPTables:
			return sameKind && b.network.config.Name == a.network.config.Name
		case fwrules.NFTables:
			return sameKind && deleted == known.HostPorts // the comment is the container's ID on every network
		}
		return false
	})
}

// inherit restores the siblings' missing host ports in this module's own table.
// A sibling may forward the same port of the host as the removed attachment.
func (a *attachment) inherit(ctx context.Context) error {
	return a.mendAll(ctx, func(_ *attachment, w footprint.Wanted) bool {
		return known.Of(w.Type).Rules == known.HostPorts && w.Backend == fwrules.Native
	})
}

// mendAll restores those missing rules of the siblings for which pick returns
// true. It does nothing for a container whose namespace is gone.
func (a *attachment) mendAll(ctx context.Context, pick func(*attachment, footprint.Wanted) bool) error {
	if a.op.HostGone || a.op.Host.Handle == nil || a.op.Record != nil && !a.op.Damaged && a.op.Gone() {
		return nil
	}
	all, err := a.siblings()
	errs := []error{err}
	for _, b := range all {
		if a.op.Record != nil && !a.op.Damaged && b.state != record.Added {
			continue // it is being removed, or its ADD will make its rules
		}
		wants, err := b.described().Wants()
		if err != nil {
			errs = append(errs, &mendError{b.network.config.Name, b.IfName, err})
		}
		for _, w := range wants {
			if w.Reference {
				w.Backend = referenceBackend()
			}
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

// makeAgain makes the rules unless they all exist.
func (a *attachment) makeAgain(ctx context.Context, w footprint.Wanted) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTime)
	defer cancel()
	given := a.given()
	fw := given.Firewalls(a.op.Host.Handle)
	given.Filters.AnyForm = true
	unsure := given.Firewalls(a.op.Host.Handle)
	for i := range w.Rules.HostPorts {
		if w.Backend != fwrules.IPTables {
			h := &w.Rules.HostPorts[i]
			h.ConditionsV4, h.ConditionsV6 = nil, nil // in nftables, all containers share the conditions
			h.MasqAll = h.MasqAll && a.described().IsBuiltIn(w.Type)
		}
	}
	if fw.Check(ctx, w.Backend, w.Rules) == nil || w.Unsure && unsure.Check(ctx, fwrules.Native, w.Rules) == nil {
		return nil
	}
	a.op.logger.Info("making rules again that the removal of another attachment has deleted", "container", a.op.ID,
		"network", a.network.config.Name, "interface", a.IfName, "plugin", w.Type)
	return fw.Add(ctx, w.Backend, w.Rules)
}

// referenceBackend returns the backend that the reference plugins use if the
// configuration names none.
func referenceBackend() fwrules.Backend {
	if netfilter.Detect() == fwrules.DetectedIPTables {
		return fwrules.IPTables
	}
	return fwrules.NFTables
}
