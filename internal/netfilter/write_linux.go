package netfilter

import (
	"context"
	"errors"
	"fmt"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"slices"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Add makes the rules, when Batch is flushed if there is one.
func (fw *Firewalls) Add(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	return fw.write(ctx, b, r, true)
}

// Remove deletes the rules, when Batch is flushed if there is one.
func (fw *Firewalls) Remove(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	return fw.write(ctx, b, r, false)
}

// Check returns an error unless all of the rules are there.
func (fw *Firewalls) Check(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	if b == fwrules.Native && fw.AnyForm {
		return fw.checkAny(ctx, r)
	}
	return fw.check(ctx, b, r)
}

// call runs fn with the backend's writer, in the namespace or with a socket in
// it.
func (fw *Firewalls) call(ctx context.Context, b fwrules.Backend, fn func(writer) error) error {
	switch b {
	case fwrules.Native:
		return fw.onSocket(ctx, func(c *nft.Conn) error { return fn(native{c, fw.siblings}) })
	case fwrules.NFTables:
		return fw.onSocket(ctx, func(c *nft.Conn) error { return fn(nftForm{c, fw.siblings}) })
	case fwrules.IPTables:
		return fn(iptablesWriter{fw})
	}
	return b.Unknown()
}

// change is which changes go in one transaction.
type change struct {
	backend fwrules.Backend
	add     bool
	ns      netns.ID
}

func (fw *Firewalls) write(ctx context.Context, b fwrules.Backend, r fwrules.Rules, add bool) error {
	if b != fwrules.Native && b != fwrules.NFTables && b != fwrules.IPTables {
		return b.Unknown()
	}
	kind := change{backend: b, add: add}
	if fw.ns != nil {
		kind.ns = fw.ns.ID()
	}
	return batch.Join(ctx, fw.Batch, kind, r, func(ctx context.Context, all []fwrules.Rules) error {
		var together fwrules.Rules
		for _, one := range all {
			together.Masquerade = append(together.Masquerade, one.Masquerade...)
			together.HostPorts = append(together.HostPorts, one.HostPorts...)
			together.Forward = append(together.Forward, one.Forward...)
		}
		err := fw.call(ctx, b, func(w writer) error {
			if add {
				return w.add(ctx, together)
			}
			return w.remove(ctx, together)
		})
		if err != nil {
			return err
		}
		return fw.forgetFlows(ctx, together.HostPorts)
	})
}

// check is Check, by one backend.
func (fw *Firewalls) check(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	return fw.call(ctx, b, func(w writer) error { return w.check(ctx, r) })
}

// checkAny returns an error unless the rules are there in one of the forms.
// That of executables goes first: it is theirs more often than not.
func (fw *Firewalls) checkAny(ctx context.Context, r fwrules.Rules) error {
	var errs []error
	for _, b := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native} {
		wanted := r
		if b == fwrules.NFTables {
			// As the plugin portmap does where the backend is named: the
			// reference plugin makes no such rule.
			wanted.HostPorts = slices.Clone(r.HostPorts)
			for i := range wanted.HostPorts {
				wanted.HostPorts[i].MasqAll = false
			}
		}
		err := fw.check(ctx, b, wanted)
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("the rules are there in no form: %w", errors.Join(errs...))
}

// writer is a backend. Each call is for the network namespace of the calling
// thread.
type writer interface {
	// add makes the rules, all or none. It can be repeated.
	add(ctx context.Context, r fwrules.Rules) error
	// remove deletes what add has made. What is gone is fine, and what can no
	// longer be computed, as addresses that are unknown, is looked for.
	remove(ctx context.Context, r fwrules.Rules) error
	// check returns an error that names the first rule that is not there.
	check(ctx context.Context, r fwrules.Rules) error
}
