package netfilter

import (
	"context"
	"errors"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/iptform"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/nft"
)

// Witness remembers the existing rules of one attachment, and reports later whether
// they still exist.
type Witness struct {
	plan       Plan
	generation uint32   // from before the look; 0: the kernel has no nf_tables
	rules      []uint64 // of the native table, if there are elements in it
}

// Watch remembers the existing rules of t's attachment.
func Watch(ctx context.Context, fw *Firewalls, t fwrules.Target) (*Witness, error) {
	w := &Witness{}
	var err error
	if w.generation, err = fw.generation(ctx); err != nil {
		return w, err
	}
	if w.plan, err = Find(ctx, fw, t); err == nil {
		w.rules, err = w.nativeRules(ctx)
	}
	return w, err
}

// Intact reports whether all of the rules still exist; fw are the packet filters of
// the same namespace. One message shows whether any rule of nf_tables has changed
// since. If none has, Intact looks no further, unless some rules are of legacy
// iptables, which counts no changes.
func (w *Witness) Intact(ctx context.Context, fw *Firewalls) (bool, error) {
	if w.plan.Empty() {
		return true, nil
	}
	now, err := fw.generation(ctx)
	if err != nil {
		return false, err
	}
	if now == w.generation && !w.legacy() {
		return true, nil
	}
	for _, f := range w.plan.found {
		if intact, err := f.Intact(ctx); err != nil || !intact {
			return false, err
		}
	}
	rules, err := w.nativeRules(ctx)
	return err == nil && !slices.ContainsFunc(w.rules, func(h uint64) bool { return !slices.Contains(rules, h) }), err
}

// legacy reports whether there are rules of legacy iptables.
func (w *Witness) legacy() bool {
	return slices.ContainsFunc(w.plan.found, func(f fwrules.Found) bool {
		i, ok := f.(iptform.Found)
		return ok && i.Legacy()
	})
}

// nativeRules returns the handles of the native table's rules, if there are elements
// in it.
func (w *Witness) nativeRules(ctx context.Context) ([]uint64, error) {
	for _, f := range w.plan.found {
		if elements, ok := f.(native.Found); ok {
			return elements.Rules(ctx)
		}
	}
	return nil, nil
}

func (fw *Firewalls) generation(ctx context.Context) (n uint32, err error) {
	err = fw.sockets.Do(ctx, func(c *nft.Conn) error {
		n, err = c.Generation()
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return 0, nil
	}
	return n, err
}
