package netfilter

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// Check returns an error that names the first chain or rule that does not exist.
func (f iptForm) Check(ctx context.Context, r fwrules.Rules) error {
	return f.in(func() error {
		return sequence(families(r), func(w desired) error {
			x, err := f.attachmentsMaker(ctx, w.v6, false)
			if err != nil {
				return err
			}
			return x.check(ctx, w)
		})
	})
}

// check asks the tool for all rules at once where it can be asked: what it takes
// for the same rule is what the plugins that are executed take for it.
func (x maker) check(ctx context.Context, w desired) error {
	f, err := x.look(ctx, w)
	if err != nil {
		return err
	}
	for _, c := range w.chains {
		if !f.chains[c.ChainID] {
			return fmt.Errorf("%s: chain %s of table %s is not there", x.Name(), c.Chain, c.Table)
		}
	}
	states, err := x.ask(ctx, w, f)
	if err != nil {
		return err
	}
	for _, r := range w.rules {
		if states[r.String()] != present {
			return fmt.Errorf("%s: the rule %v is not there", x.Name(), r)
		}
	}
	return nil
}
