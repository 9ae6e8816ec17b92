package iptform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// The reference plugins create the chains and rules that containers share in
// iptables when the first container needs them. They check for each one and
// create it if it is missing, without a lock: two plugins at the same time
// create it twice, or fail. So the shared rules are created before the plugins
// run, in the plugins' form, and the plugins find them.

// Common holds the chains and rules that MakeCommon created.
type Common struct {
	made []madeCommon
}

// madeCommon holds the chains and rules that were created for one family.
type madeCommon struct {
	legacy bool // the variant
	made   desired
}

// Empty reports whether nothing was made.
func (c Common) Empty() bool { return len(c.made) == 0 }

// common returns the part of w that containers share.
func (w desired) common() desired {
	c := desired{v6: w.v6}
	for _, chain := range w.chains {
		if chain.shared {
			c.chains = append(c.chains, chain)
		}
	}
	for _, r := range w.rules {
		if r.shared {
			c.rules = append(c.rules, r)
		}
	}
	return c
}

// eachCommon calls fn for each family in which r has shared rules, on a thread
// in the namespace. The maker is of the variant that the system has under the
// name iptables. Without such a program, fn is not called.
func (f Form) eachCommon(ctx context.Context, r fwrules.Rules, fn func(maker, desired) error) error {
	return f.in(func() error {
		return sequence(families(r), func(w desired) error {
			w = w.common()
			if w.empty() {
				return nil
			}
			x := f.maker(w.v6, false)
			err := x.Detect(ctx)
			if errors.Is(err, iptables.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			return fn(x, w)
		})
	})
}

// HasCommon reports whether the system's iptables has all rules that r shares
// with other containers. It starts no process if a link shows the variant, and
// does not look at the rules of single containers.
func (f Form) HasCommon(ctx context.Context, r fwrules.Rules) (bool, error) {
	has := true
	err := f.eachCommon(ctx, r, func(x maker, w desired) error {
		there, err := x.hasCommon(ctx, w)
		has = has && there
		return err
	})
	return has && err == nil, err
}

// MakeCommon creates the missing rules that r shares with other containers, in
// the system's iptables and in the reference plugins' form. It takes one
// transaction for each family and table. It returns the rules that it created,
// also with an error.
func (f Form) MakeCommon(ctx context.Context, r fwrules.Rules) (Common, error) {
	var c Common
	err := f.eachCommon(ctx, r, func(x maker, w desired) error {
		made, err := x.makeCommon(ctx, w)
		if len(made.chains) > 0 {
			c.made = append(c.made, madeCommon{x.Legacy, made})
		}
		return err
	})
	return c, err
}

// makeCommon creates the missing rules. It returns the new chains, with the
// rules in them and the jumps to them.
func (x maker) makeCommon(ctx context.Context, w desired) (made desired, err error) {
	made.v6 = w.v6
	err = x.exactly(ctx, w, func(f facts, states map[string]state) error {
		made = missing(w, f, states)
		var mine desired // nothing, as all is shared
		err := x.make(ctx, w, f, func(r desiredRule) state { return states[r.key()] }, &mine)
		if err != nil {
			made = desired{v6: w.v6}
		}
		return err
	})
	return made, err
}

// missing returns the chains of w that do not exist, with their rules and the
// jumps to them. It leaves out a rule that is missing from an existing chain:
// another caller created the chain and needs the rule.
func missing(w desired, f facts, states map[string]state) desired {
	made := desired{v6: w.v6}
	of := func(id iptables.ChainID) bool {
		return slices.ContainsFunc(made.chains, func(c desiredChain) bool { return c.ChainID == id })
	}
	for _, c := range w.chains {
		if !f.chains[c.ChainID] {
			made.chains = append(made.chains, c)
		}
	}
	for _, r := range w.rules {
		if states[r.key()] == absent && (of(r.ChainID) || of(inTable(r.Table, r.target))) {
			made.rules = append(made.rules, r)
		}
	}
	return made
}

// RemoveCommon deletes the rules that MakeCommon created, unless they are in
// use: all of a table, or none. The caller makes sure that nobody is about to
// use them. An error says which rules remain, and that another container may
// use them.
func (f Form) RemoveCommon(ctx context.Context, c Common) error {
	return f.in(func() error {
		for _, m := range c.made {
			if err := f.maker(m.made.v6, m.legacy).removeCommon(ctx, m.made); err != nil {
				return fmt.Errorf("%w (another container may use it)", err)
			}
		}
		return nil
	})
}

func (x maker) removeCommon(ctx context.Context, made desired) error {
	unlock, err := iptables.LockNamespace(ctx)
	if err != nil {
		return err
	}
	for _, table := range []string{tableNAT, tableFilter} {
		part := made.of(table)
		if err == nil {
			err = x.undo(ctx, part, part)
		}
	}
	if uerr := unlock(); err == nil {
		err = uerr
	}
	return err
}

// of returns the part of w that is in a table.
func (w desired) of(table string) desired {
	return desired{
		v6:     w.v6,
		chains: slices.DeleteFunc(slices.Clone(w.chains), func(c desiredChain) bool { return c.Table != table }),
		rules:  slices.DeleteFunc(slices.Clone(w.rules), func(r desiredRule) bool { return r.Table != table }),
	}
}
