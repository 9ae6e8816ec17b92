package iptform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// source is where rules of one family and variant are looked for: the tool and the
// kernel, or a dump.
type source interface {
	Name() string
	// compare returns the existing chains of w, and the state of each of its rules,
	// which is absent or present.
	compare(ctx context.Context, w desired) (map[iptables.ChainID]bool, map[string]state, error)
}

// compare asks the tool for all rules at once where it can be asked: the executable
// plugins compare rules by the same tool.
func (x maker) compare(ctx context.Context, w desired) (map[iptables.ChainID]bool, map[string]state, error) {
	f, err := x.look(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	states, err := x.ask(ctx, w, f)
	return f.chains, states, err
}

// Missing returns the parts of the rules that do not exist. Of a rule to which no rule
// leads, the part is missing too.
func (f Form) Missing(ctx context.Context, r fwrules.Rules) (all []fwrules.Missing, err error) {
	err = f.in(func() error {
		all, err = missingParts(ctx, r, func(v6 bool) (source, error) { return f.attachmentsMaker(ctx, v6, false) })
		return err
	})
	return all, err
}

// missingParts compares the rules with a source for each family that has any.
func missingParts(ctx context.Context, r fwrules.Rules, from func(v6 bool) (source, error)) (all []fwrules.Missing, err error) {
	parts := r.Parts()
	errs := make([]error, len(parts))
	for _, w := range families(r) {
		x, err := from(w.v6)
		if err != nil {
			return nil, err
		}
		chains, states, err := x.compare(ctx, w)
		if err != nil {
			return nil, err
		}
		desiredOf := desiredOfParts(w.v6)
		for i, p := range parts {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if errs[i] == nil {
				errs[i] = desiredOf(p).absent(x.Name(), chains, states)
			}
		}
	}
	for i, p := range parts {
		if errs[i] != nil {
			all = append(all, fwrules.Missing{Backend: fwrules.IPTables, Rules: p.Whole, Object: p.Object, Err: fwrules.AsMissing(errs[i])})
		}
	}
	return all, nil
}

// absent returns an error that names the first chain or rule that does not exist.
func (w desired) absent(tool string, chains map[iptables.ChainID]bool, states map[string]state) error {
	for _, c := range w.chains {
		if !chains[c.ChainID] {
			return fmt.Errorf("%s: chain %s of table %s is not there", tool, c.Chain, c.Table)
		}
	}
	for _, r := range w.rules {
		if states[r.key()] != present {
			return fmt.Errorf("%s: the rule %v is not there", tool, r)
		}
	}
	return nil
}

// isolateFirst keeps the jump to the isolation of bridges before the one to
// CNI-FORWARD, which is about to be made again at the beginning: the rules there
// accept packets that the isolation drops.
func (x maker) isolateFirst(ctx context.Context, w desired, state func(desiredRule) state, s *iptables.Script) error {
	if !x.restores || !slices.ContainsFunc(w.rules, func(r desiredRule) bool {
		return r.target == chainForward && state(r) == absent
	}) {
		return nil
	}
	isolates, err := x.jumps(ctx, inTable(tableFilter, "FORWARD"), chainStage1)
	if err != nil || !isolates {
		return err
	}
	return isolateFirst(s)
}

// isolateFirst puts the jump to the isolation of bridges, which exists, at the beginning.
func isolateFirst(s *iptables.Script) error {
	jump := isolationJump()
	return errors.Join(jump.addTo(s, "-D"), jump.addTo(s, "-I"))
}

// jumps reports whether a rule of the chain jumps to the target.
func (x maker) jumps(ctx context.Context, id iptables.ChainID, target string) (found bool, err error) {
	if !x.Legacy {
		err = nft.UntilUnchanged(ctx, func() error {
			found = false
			return x.Rules(ctx, id, nil, func(r nft.Rule) error {
				found = found || r.Jump() == target
				return nil
			})
		})
		return found, err
	}
	has, err := x.HasLegacyTable(id.Table)
	if err != nil || !has {
		return false, err
	}
	rules, _, err := x.LegacyRules(id.Table)
	return slices.ContainsFunc(rules, func(r iptables.LegacyRule) bool { return r.Chain == id.Chain && r.Target == target }), err
}
