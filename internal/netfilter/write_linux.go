package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
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

// Check returns an error unless all of the rules exist.
func (fw *Firewalls) Check(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	if b == fwrules.Native && fw.AnyForm {
		return fw.checkAny(ctx, r)
	}
	return fw.check(ctx, b, r)
}

// change identifies the changes that go in one transaction.
type change struct {
	backend fwrules.Backend
	add     bool
	ns      netns.ID
}

func (fw *Firewalls) write(ctx context.Context, b fwrules.Backend, r fwrules.Rules, add bool) error {
	form, err := fw.form(b)
	if err != nil {
		return err
	}
	kind := change{backend: b, add: add}
	if fw.sockets.NS != nil {
		kind.ns = fw.sockets.NS.ID()
	}
	return batch.Join(ctx, fw.Batch, kind, r, func(ctx context.Context, all []fwrules.Rules) error {
		var together fwrules.Rules
		for _, one := range all {
			together.Masquerade = append(together.Masquerade, one.Masquerade...)
			together.HostPorts = append(together.HostPorts, one.HostPorts...)
			together.Forward = append(together.Forward, one.Forward...)
		}
		change := form.Remove
		if add {
			change = form.Add
		}
		if err := change(ctx, together); err != nil {
			return err
		}
		return fw.forgetFlows(ctx, together.HostPorts)
	})
}

// check is Check, by one backend.
func (fw *Firewalls) check(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	form, err := fw.form(b)
	if err != nil {
		return err
	}
	return form.Check(ctx, r)
}

// checkAny returns an error unless the rules exist in one of the forms.
// That of executables goes first: they made most of such rules.
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
