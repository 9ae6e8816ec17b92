package iptform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// Restoring is the rules of an attachment that are to be restored, and the form for it.
type Restoring struct {
	Form  Form
	Rules fwrules.Rules
}

// Restore adds the missing rules of attachments in one namespace, and changes nothing
// else. It can be repeated.
//
// For several attachments it lists all rules once, and adds the missing ones together.
// If it fails, some may have been added.
func Restore(ctx context.Context, all []Restoring) error {
	if len(all) == 1 {
		return all[0].Form.restore(ctx, all[0].Rules)
	}
	here := all[0].Form.in
	return here(func() error {
		tools, err := restorersOf(ctx, all)
		if err != nil {
			return err
		}
		return sequence(tools, func(r *restorer) error { return r.restore(ctx) })
	})
}

// restorer adds the missing rules of attachments with one tool.
type restorer struct {
	maker
	wanted []desired // by attachment

	dump      *dump
	chains    map[iptables.ChainID]bool // that are added
	rules     map[string]bool
	isolation bool // the jump to the isolation of bridges is one of them
}

// restorersOf returns a restorer for each family and variant.
func restorersOf(ctx context.Context, all []Restoring) (tools []*restorer, err error) {
	for _, one := range all {
		for _, w := range families(one.Rules) {
			x, err := one.Form.attachmentsMaker(ctx, w.v6, true)
			if err != nil {
				return nil, err
			}
			x.restores = true
			i := slices.IndexFunc(tools, func(r *restorer) bool { return r.Name() == x.Name() })
			if i < 0 {
				i = len(tools)
				tools = append(tools, &restorer{maker: x, chains: make(map[iptables.ChainID]bool), rules: make(map[string]bool)})
			} else {
				tools[i].hold(x)
			}
			tools[i].wanted = append(tools[i].wanted, w)
		}
	}
	return tools, nil
}

// hold has the processes keep the lock of another attachment's container too.
func (r *restorer) hold(x maker) {
	for _, f := range x.Held {
		if !slices.Contains(r.Held, f) {
			r.Held = append(r.Held, f)
		}
	}
}

// restore adds the missing rules. Meanwhile no other user of this module creates shared
// rules. Executed plugins do not know that lock: if they interfere, it fails.
func (r *restorer) restore(ctx context.Context) (err error) {
	unlock, err := iptables.LockNamespace(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if r.dump, err = readDump(ctx, r.maker); err != nil {
		return fmt.Errorf("%s: list the rules: %w", r.Name(), err)
	}
	r.dump.in = func(do func() error) error { return do() }
	var nat, filter []iptables.Script // by attachment
	for _, w := range r.wanted {
		in, err := r.additions(ctx, w)
		if err != nil {
			return err
		}
		nat, filter = append(nat, in[tableNAT]), append(filter, in[tableFilter])
	}
	if err := r.run(ctx, append(nat, filter...)); err != nil {
		return fmt.Errorf("%s: add the rules of %d attachments: %w", r.Name(), len(r.wanted), err)
	}
	return nil
}

// additions returns the commands that add what an attachment lacks, by table.
func (r *restorer) additions(ctx context.Context, w desired) (map[string]iptables.Script, error) {
	chains, states, err := r.dump.compare(ctx, w)
	if err != nil {
		return nil, err
	}
	f := facts{chains: make(map[iptables.ChainID]bool)}
	for _, c := range w.chains {
		f.chains[c.ChainID] = chains[c.ChainID] || r.chains[c.ChainID]
	}
	stateOf := func(rule desiredRule) state {
		if r.rules[rule.key()] {
			return present
		}
		return states[rule.key()]
	}
	scripts := make(map[string]iptables.Script)
	for _, table := range []string{tableNAT, tableFilter} {
		var s iptables.Script
		if err := w.additions(&s, table, f, stateOf, true, &desired{}); err != nil {
			return nil, err
		}
		if table == tableFilter {
			if err := r.isolateAgain(ctx, w, stateOf, &s); err != nil {
				return nil, err
			}
		}
		scripts[table] = s
	}
	for _, c := range w.chains {
		r.chains[c.ChainID] = true
	}
	for _, rule := range w.rules {
		r.isolation = r.isolation || rule.target == chainStage1 && stateOf(rule) == absent
		r.rules[rule.key()] = true
	}
	return scripts, nil
}

// isolateAgain is isolateFirst, also for a jump that an attachment before has added.
func (r *restorer) isolateAgain(ctx context.Context, w desired, stateOf func(desiredRule) state, s *iptables.Script) error {
	if !r.isolation {
		return r.isolateFirst(ctx, w, stateOf, s)
	}
	if !slices.ContainsFunc(w.rules, func(rule desiredRule) bool { return rule.target == chainForward && stateOf(rule) == absent }) {
		return nil
	}
	return isolateFirst(s)
}

// run runs the scripts in order, as many in a transaction as fit. That of an attachment
// stays together unless it is larger by itself.
func (r *restorer) run(ctx context.Context, scripts []iptables.Script) error {
	var together iptables.Script
	for _, s := range scripts {
		if len(together) > 0 && len(together)+len(s) > iptables.MostLines {
			if err := r.maker.run(ctx, together); err != nil {
				return err
			}
			together = nil
		}
		together = append(together, s...)
	}
	if len(together) == 0 {
		return nil
	}
	return r.maker.run(ctx, together)
}
