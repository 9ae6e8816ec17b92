package netfilter

import (
	"context"

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
	return batch.Join(ctx, fw.Batch, change{backend: b, add: add, ns: fw.namespace()}, r, func(ctx context.Context, all []fwrules.Rules) error {
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
		return fw.forgetFlows(ctx, together.HostPorts, false)
	})
}
