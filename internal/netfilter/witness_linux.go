package netfilter

import (
	"context"
	"errors"
	"fmt"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"slices"

	"github.com/embedcni/cni/internal/nft"
)

// Witness has seen the rules of one attachment, to say later whether they are
// still there.
type Witness struct {
	plan       Plan
	generation uint32   // from before the look; 0: there is no nf_tables
	rules      []uint64 // of the native table, if there are elements in it
}

// Watch looks at the rules that there are of t's attachment.
func Watch(ctx context.Context, fw *Firewalls, t fwrules.Target) (*Witness, error) {
	w := &Witness{}
	err := fw.do(func() (err error) {
		if w.generation, err = fw.generation(ctx); err != nil {
			return err
		}
		if w.plan, err = Find(ctx, fw, t); err == nil && w.native() {
			w.rules, err = fw.nativeRules(ctx)
		}
		return err
	})
	return w, err
}

// Intact reports whether all that was seen is still there; fw are the packet
// filters of the same namespace. If no rule of nf_tables has changed since, which
// takes one message to know, it looks no further, unless some were of legacy
// iptables, where there is nothing that says so.
func (w *Witness) Intact(ctx context.Context, fw *Firewalls) (intact bool, err error) {
	if w.plan.Empty() {
		return true, nil
	}
	err = fw.do(func() error {
		now, err := fw.generation(ctx)
		if err != nil {
			return err
		}
		if now == w.generation && !w.legacy() {
			intact = true
			return nil
		}
		for _, one := range w.plan.work {
			if intact, err = one.intact(ctx); err != nil || !intact {
				return err
			}
		}
		if w.native() {
			rules, rerr := fw.nativeRules(ctx)
			intact, err = !slices.ContainsFunc(w.rules, func(h uint64) bool { return !slices.Contains(rules, h) }), rerr
		}
		return err
	})
	return intact, err
}

func (w *Witness) legacy() bool {
	return slices.ContainsFunc(w.plan.work, func(one work) bool {
		i, ok := one.(iptablesWork)
		return ok && i.tool.legacy()
	})
}

// native reports whether there are elements of the native table.
func (w *Witness) native() bool {
	return slices.ContainsFunc(w.plan.work, func(one work) bool {
		_, ok := one.(nativeWork)
		return ok
	})
}

func (fw *Firewalls) generation(ctx context.Context) (n uint32, err error) {
	err = fw.onSocket(ctx, func(c *nft.Conn) error {
		n, err = c.Generation()
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return 0, nil
	}
	return n, err
}

func (w iptablesWork) intact(ctx context.Context) (bool, error) {
	left, err := w.left(ctx)
	return len(left) == len(w.commands), err
}

func (w nftablesWork) intact(ctx context.Context) (yes bool, err error) {
	err = w.fw.onKernel(ctx, func(k kernel) error {
		return nft.UntilUnchanged(ctx, func() error {
			left, _, err := w.left(k, w.objects)
			yes = err == nil && len(left) == len(w.objects)
			return err
		})
	})
	return yes, err
}

func (w nativeWork) intact(ctx context.Context) (yes bool, err error) {
	err = w.fw.onKernel(ctx, func(k kernel) error {
		found, _, err := k.Elements(nativeTable, w.elements, nil)
		if err != nil {
			return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
		}
		yes = !slices.ContainsFunc(w.elements, func(e element) bool { return !slices.Contains(found, e) })
		return nil
	})
	return yes, err
}

// nativeRules returns the handles of the native table's rules, without which its
// elements have no effect. They are few, and the same for all containers.
func (fw *Firewalls) nativeRules(ctx context.Context) (handles []uint64, err error) {
	err = fw.onSocket(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			handles = nil
			return c.Rules(nativeTable, "", nil, func(r nft.Rule) error {
				handles = append(handles, r.Handle)
				return nil
			})
		})
	})
	return handles, err
}
