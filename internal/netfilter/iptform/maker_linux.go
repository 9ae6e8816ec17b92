package iptform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
)

// maker is a variant of iptables. Its methods are called on a thread in the
// namespace, in which processes are started.
type maker struct {
	iptables.Tool
	// restores means that rules are added to existing chains of the container's own,
	// each where it has effect.
	restores bool
	kept     *Kept
}

// maker returns the maker of a variant.
func (f Form) maker(v6, legacy bool) maker {
	family := "iptables"
	if v6 {
		family = "ip6tables"
	}
	x := maker{Tool: iptables.Tool{Family: family, Legacy: legacy, Sockets: f.Sockets}, kept: f.Kept}
	if f.Held != nil {
		x.Held = []*os.File{f.Held}
	}
	return x
}

// add makes the missing part of w. Before that, it adds to mine the missing rules
// that are the container's own.
//
// In most cases all of its own rules are missing, and nothing has to be locked: the
// same transaction verifies the shared rules, and fails if one of the container's
// chains exists.
func (x maker) add(ctx context.Context, w desired, mine *desired) error {
	f, err := x.look(ctx, w)
	if err != nil {
		return err
	}
	if f.allShared(w) {
		err := x.make(ctx, w, f, func(r desiredRule) state { return f.state(w, r) }, mine)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return x.addExactly(ctx, w, mine)
}

// allShared reports whether nothing that is shared is missing, and no rule of
// the container's own is in doubt.
func (f facts) allShared(w desired) bool {
	for _, c := range w.chains {
		// Two calls could both add the missing rules of an existing chain.
		if c.shared != f.chains[c.ChainID] {
			return false
		}
	}
	for _, r := range w.rules {
		s := f.state(w, r)
		if r.shared && s == absent || !r.shared && s == unknown {
			return false
		}
	}
	return true
}

// addExactly creates the missing rules. It asks the tool for each rule that is
// in doubt.
func (x maker) addExactly(ctx context.Context, w desired, mine *desired) error {
	return x.exactly(ctx, w, func(f facts, states map[string]state) error {
		return x.make(ctx, w, f, func(r desiredRule) state { return states[r.key()] }, mine)
	})
}

// exactly calls fn, which creates the missing rules, with the present state of
// w. Meanwhile no other user of this module creates shared rules. Executed
// plugins do not know that lock: if one creates a chain at the same time,
// exactly looks again.
func (x maker) exactly(ctx context.Context, w desired, fn func(facts, map[string]state) error) (err error) {
	unlock, err := iptables.LockNamespace(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	f, err := x.look(ctx, w)
	const attempts = 3
	for range attempts {
		if err != nil {
			return err
		}
		states, err := x.ask(ctx, w, f)
		if err != nil {
			return err
		}
		err = fn(f, states)
		if err == nil || ctx.Err() != nil {
			return err
		}
		again, lookErr := x.look(ctx, w)
		if lookErr != nil || again.same(f) {
			return errors.Join(err, lookErr)
		}
		f = again
	}
	return fmt.Errorf("%s: others have changed the shared chains %d times meanwhile", x.Name(), attempts)
}

// same reports whether the same chains exist.
func (f facts) same(g facts) bool {
	if len(f.chains) != len(g.chains) {
		return false
	}
	for id := range f.chains {
		if !g.chains[id] {
			return false
		}
	}
	return true
}

// ask asks the kernel for the rules that are in doubt, and then the tool for those that
// still are: for all at once, and after each missing rule for the rules behind it.
func (x maker) ask(ctx context.Context, w desired, f facts) (map[string]state, error) {
	states := make(map[string]state)
	var doubt []desiredRule
	for _, r := range w.rules {
		s := f.state(w, r)
		states[r.key()] = s
		if s == unknown {
			doubt = append(doubt, r)
		}
	}
	doubt, err := x.askKernel(ctx, doubt, states)
	if err != nil {
		return nil, err
	}
	for len(doubt) > 0 {
		missing, err := x.firstMissing(ctx, doubt)
		if err != nil {
			return nil, err
		}
		for _, r := range doubt[:missing] {
			states[r.key()] = present
		}
		if missing == len(doubt) {
			break
		}
		states[doubt[missing].key()] = absent
		doubt = doubt[missing+1:]
	}
	return states, nil
}

// firstMissing returns the index of the first rule that does not exist, or their
// number. The rules are in the order of their tables.
func (x maker) firstMissing(ctx context.Context, rules []desiredRule) (int, error) {
	var s iptables.Script
	for _, r := range rules {
		if err := r.addTo(&s, "-C"); err != nil {
			return 0, err
		}
	}
	text, numbers := s.Render()
	err := x.Restore(ctx, text)
	if err == nil {
		return len(rules), nil
	}
	if iptables.Refused(err) {
		if i := slices.Index(numbers, iptables.FailedLine(err.Error())); i >= 0 {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s: look for %d rules: %w", x.Name(), len(rules), err)
}

// make makes the absent chains and rules, and fails if a shared rule that is in doubt
// does not exist. Each table is changed as a whole or not at all.
func (x maker) make(ctx context.Context, w desired, f facts, state func(desiredRule) state, mine *desired) error {
	var s iptables.Script
	for _, table := range []string{tableNAT, tableFilter} {
		if err := w.additions(&s, table, f, state, x.restores, mine); err != nil {
			return err
		}
	}
	if err := x.isolateFirst(ctx, w, state, &s); err != nil {
		return err
	}
	if err := x.run(ctx, s); err != nil {
		return fmt.Errorf("%s: add the rules: %w", x.Name(), err)
	}
	return nil
}

// additions writes commands that make the absent chains and rules of a table, and
// commands that fail if a shared rule is not in the expected state. If it restores,
// rules that must lead a chain go before those that are there.
func (w desired) additions(s *iptables.Script, table string, f facts, state func(desiredRule) state, restores bool, mine *desired) error {
	for _, c := range w.chains {
		if c.Table == table && !f.chains[c.ChainID] {
			if err := s.Add(table, "-N", c.Chain); err != nil {
				return err
			}
			if !c.shared {
				mine.chain(table, c.Chain, false)
			}
		}
	}
	for _, r := range w.rules {
		if r.Table != table {
			continue
		}
		verb := ""
		switch state(r) {
		case present:
			continue
		case unknown:
			verb = "-C"
		case absent:
			verb = "-A"
			if r.first || r.leads && restores && f.chains[r.ChainID] {
				verb = "-I"
			}
			if !r.shared {
				mine.rule(r, r.args...)
			}
		}
		if err := r.addTo(s, verb); err != nil {
			return err
		}
	}
	return nil
}

// undo deletes the rules of w that this call has made.
func (x maker) undo(ctx context.Context, w, mine desired) error {
	if mine.empty() {
		return nil
	}
	f, err := x.look(ctx, w)
	if err != nil {
		return err
	}
	w.rules = mine.rules
	states, err := x.ask(ctx, w, f)
	if err != nil {
		return err
	}
	var s iptables.Script
	for _, table := range []string{tableNAT, tableFilter} {
		for _, r := range w.rules {
			if r.Table == table && states[r.key()] == present {
				if err := r.addTo(&s, "-D"); err != nil {
					return err
				}
			}
		}
		for _, c := range mine.chains {
			if c.Table == table && f.chains[c.ChainID] {
				if err := s.Add(table, "-X", c.Chain); err != nil {
					return err
				}
			}
		}
	}
	if err := x.run(ctx, s); err != nil {
		return fmt.Errorf("%s: delete the rules that were added: %w", x.Name(), err)
	}
	return nil
}
