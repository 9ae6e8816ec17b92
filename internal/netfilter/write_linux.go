package netfilter

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/netns"
)

// change identifies the changes that go in one transaction.
type change struct {
	kind string // "add", "remove" or "restore"
	ns   netns.ID
}

// changed is the rules of an attachment that are to be changed.
type changed struct {
	fw    *Firewalls
	rules fwrules.Rules
}

// Add makes the rules, when Batch is flushed if there is one.
func (fw *Firewalls) Add(ctx context.Context, r fwrules.Rules) error {
	return fw.join(ctx, "add", r, func(ctx context.Context, all []changed, r fwrules.Rules) error {
		if err := fw.native.Add(ctx, r); err != nil {
			return err
		}
		return errors.Join(acceptAll(ctx, all), fw.forgetFlows(ctx, r.HostPorts, false))
	})
}

// Remove deletes the rules, when Batch is flushed if there is one. It leaves those that
// accept the packets of a network to [Find], which knows who needs them.
func (fw *Firewalls) Remove(ctx context.Context, r fwrules.Rules) error {
	return fw.join(ctx, "remove", r, func(ctx context.Context, _ []changed, r fwrules.Rules) error {
		if err := fw.native.Remove(ctx, r); err != nil {
			return err
		}
		return fw.forgetFlows(ctx, r.HostPorts, false)
	})
}

// Restore adds those of the rules that do not exist, when Batch is flushed if there is
// one, whoever had made them in which form. It replaces and doubles nothing, and leaves
// the rules of others where they are. It can be repeated, and is for parts that Missing
// has returned. If another rule is in the place of one, the error is a
// [fwrules.ErrInPlace] or [fwrules.ErrHostPortTaken].
//
// Batches of several attachments restore their rules together, see
// [batch.FlushTogether]. If that fails, some may have been added.
func (fw *Firewalls) Restore(ctx context.Context, r fwrules.Rules) error {
	return fw.join(ctx, "restore", r, func(ctx context.Context, all []changed, r fwrules.Rules) error {
		var parts []native.Restoring
		for _, one := range all {
			parts = append(parts, native.Restoring{Siblings: one.fw.siblings, Rules: one.rules})
		}
		if err := fw.native.Restore(ctx, parts); err != nil {
			return err
		}
		return errors.Join(acceptAll(ctx, all), fw.forgetFlows(ctx, r.HostPorts, true))
	})
}

// join calls do with the rules of all attachments whose changes of the kind go together,
// one by one and as a whole.
func (fw *Firewalls) join(ctx context.Context, kind string, r fwrules.Rules, do func(context.Context, []changed, fwrules.Rules) error) error {
	return batch.Join(ctx, fw.Batch, change{kind, fw.namespace()}, changed{fw, r}, func(ctx context.Context, all []changed) error {
		var together fwrules.Rules
		for _, one := range all {
			together.Add(one.rules)
		}
		return do(ctx, all, together)
	})
}

// acceptAll has the host forward the packets of attachments' networks.
func acceptAll(ctx context.Context, all []changed) error {
	for _, one := range all {
		for _, f := range one.rules.Forward {
			if f.IngressOnly || len(f.Addresses) == 0 {
				continue
			}
			if err := one.fw.accept(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// namespace returns the identity of the namespace, or zero for that of the thread.
func (fw *Firewalls) namespace() (id netns.ID) {
	if fw.sockets.NS != nil {
		id = fw.sockets.NS.ID()
	}
	return id
}

// forgetFlows makes conntrack forget the UDP flows to forwarded ports of the
// host. Only the first packet of a flow passes the rules: without this, a flow
// that continues would go on to its old destination. If restored, the rules were
// missing for a while: flows that began before are translated, and go on.
func (fw *Firewalls) forgetFlows(ctx context.Context, all []fwrules.HostPorts, restored bool) error {
	for _, v6 := range []bool{false, true} {
		flows := flowsTo(all, v6)
		for i := range flows {
			flows[i].Untranslated = restored
		}
		if len(flows) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := links.Forget(fw.sockets.NS, v6, flows...)
		// An interrupted list was still read to its end, and a flow that was added
		// meanwhile has seen the rules. A kernel without ctnetlink refuses the
		// request as invalid; nobody can delete its flows.
		if err != nil && !errors.Is(err, links.ErrInterrupted) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("forget the UDP flows to the host's ports: %w", err)
		}
	}
	return nil
}

// flowsTo returns the flows of a family that are to be forgotten.
func flowsTo(all []fwrules.HostPorts, v6 bool) (flows []links.Flows) {
	for _, h := range all {
		to := h.V4
		if v6 {
			to = h.V6
		}
		// Without any address it is not known which families there were.
		if !to.IsValid() && (h.V4.IsValid() || h.V6.IsValid()) {
			continue
		}
		for _, p := range h.Ports {
			if p.Protocol == "udp" && (!p.HostIP.IsValid() || p.HostIP.Is6() == v6) {
				flows = append(flows, links.Flows{Port: p.HostPort})
			}
		}
	}
	return flows
}
