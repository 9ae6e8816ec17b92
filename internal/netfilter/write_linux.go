package netfilter

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/batch"
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
	if b == Native && formOf(ctx).any {
		return fw.checkAny(ctx, r)
	}
	return fw.check(ctx, b, r)
}

// overSocket is a writer that needs no more of a namespace than a socket in it.
type overSocket interface {
	over(*socket) writer
}

// call runs fn with the writer, in the namespace or with a socket in it.
func (fw *Firewalls) call(ctx context.Context, w writer, fn func(writer) error) error {
	if o, ok := w.(overSocket); ok {
		return fw.onSocket(ctx, func(s *socket) error { return fn(o.over(s)) })
	}
	if w, ok := w.(iptablesWriter); ok {
		w.fw = fw // it needs both, each for a part
		return fn(w)
	}
	return fw.do(func() error { return fn(w) })
}

// change is which changes go in one transaction.
type change struct {
	backend Backend
	add     bool
	ns      netns.ID
}

func (fw *Firewalls) write(ctx context.Context, b Backend, r Rules, add bool) error {
	w, err := newWriter(b)
	if err != nil {
		return err
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
		err := fw.call(ctx, w, func(w writer) error {
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

// newWriter returns the backend.
func newWriter(b Backend) (writer, error) {
	switch b {
	case Native:
		return native{}, nil
	case NFTables:
		return nftForm{}, nil
	case IPTables:
		return iptablesWriter{}, nil
	default:
		return nil, fmt.Errorf("there is no firewall backend %q: iptables or nftables", string(b))
	}
}
