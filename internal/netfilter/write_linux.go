package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Add makes the rules. In the context of a [batch.Batch] it returns at once,
// and the rules are made at its flush, those of one backend in one transaction
// for each packet filter.
func (fw *Firewalls) Add(ctx context.Context, b Backend, r Rules) error {
	return fw.write(ctx, b, r, true)
}

// Remove deletes the rules, at the flush of a [batch.Batch] like Add.
func (fw *Firewalls) Remove(ctx context.Context, b Backend, r Rules) error {
	return fw.write(ctx, b, r, false)
}

// Check returns an error unless all of the rules are there.
func (fw *Firewalls) Check(ctx context.Context, b Backend, r Rules) error {
	if b == Native && fw.AnyForm {
		return fw.checkAny(ctx, r)
	}
	return fw.check(ctx, b, r)
}

// call runs fn with the backend's writer, in the namespace or with a socket in
// it.
func (fw *Firewalls) call(ctx context.Context, b Backend, fn func(writer) error) error {
	switch b {
	case Native:
		return fw.onSocket(ctx, func(c *nft.Conn) error { return fn(native{c, fw.siblings}) })
	case NFTables:
		return fw.onSocket(ctx, func(c *nft.Conn) error { return fn(nftForm{c, fw.siblings}) })
	case IPTables:
		return fn(iptablesWriter{fw})
	}
	return b.unknown()
}

func (b Backend) unknown() error {
	return fmt.Errorf("there is no firewall backend %q: iptables or nftables", string(b))
}

// change is which changes go in one transaction.
type change struct {
	backend Backend
	add     bool
	ns      netns.ID
}

func (fw *Firewalls) write(ctx context.Context, b Backend, r Rules, add bool) error {
	if b != Native && b != NFTables && b != IPTables {
		return b.unknown()
	}
	kind := change{backend: b, add: add}
	if fw.ns != nil {
		kind.ns = fw.ns.ID()
	}
	return batch.Join(ctx, kind, r, func(ctx context.Context, all []Rules) error {
		var together Rules
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
func (fw *Firewalls) check(ctx context.Context, b Backend, r Rules) error {
	return fw.call(ctx, b, func(w writer) error { return w.check(ctx, r) })
}

// checkAny returns an error unless the rules are there in one of the forms.
// That of executables goes first: it is theirs more often than not.
func (fw *Firewalls) checkAny(ctx context.Context, r Rules) error {
	var errs []error
	for _, b := range []Backend{IPTables, NFTables, Native} {
		wanted := r
		if b == NFTables {
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
