package iptform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
)

// xtables is one variant of iptables for one family: an [iptables.Tool].
type xtables interface {
	// Name returns the name of the tool: "ip6tables-legacy".
	Name() string

	// Save returns the output of iptables-save if one of the chains exists, and may
	// return nothing if none does. With an error, the output is incomplete.
	Save(ctx context.Context, chains []iptables.ChainID) (string, error)

	// Restore applies the input of iptables-restore --noflush, each table's part as
	// a whole or not at all.
	Restore(ctx context.Context, text string) error
}

// command deletes a rule ("-D"), the rules of a chain ("-F"), or a chain ("-X").
type command struct {
	iptables.ChainID
	verb string
	rule iptables.Rule // of "-D"
}

func (c command) String() string {
	if c.verb == "-D" {
		return "-D " + c.Chain + " " + c.rule.Spec
	}
	return c.verb + " " + c.Chain
}

// deletions are commands of one tool.
type deletions struct {
	tool     tool
	commands []command
}

// apply runs the commands of each table as one. If that fails, because others
// interfere, it runs those one by one for which there is still something to delete.
func (w deletions) apply(ctx context.Context) error {
	err := w.restore(ctx, w.commands)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	left, err := w.left(ctx)
	if err != nil {
		return err
	}
	failures := make([]error, len(left))
	for i, c := range left {
		failures[i] = w.restore(ctx, []command{c})
	}
	if errors.Join(failures...) == nil {
		return nil
	}
	// A rule that someone else has deleted meanwhile is no failure.
	still, err := deletions{w.tool, left}.left(ctx)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for i, c := range left {
		if !slices.ContainsFunc(still, func(s command) bool { return s.Table == c.Table && s.String() == c.String() }) {
			failures[i] = nil
		}
	}
	return errors.Join(failures...)
}

// restore runs the commands as one. The error names the command if there is only
// one.
func (w deletions) restore(ctx context.Context, commands []command) error {
	var s iptables.Script
	var err error
	for _, c := range commands {
		err = errors.Join(err, s.AddText(c.Table, c.String()))
	}
	if err == nil {
		text, _ := s.Render()
		err = w.tool.Restore(ctx, text)
	}
	if err == nil {
		return nil
	}
	if len(commands) == 1 {
		return fmt.Errorf("%s -t %s %v: %w", w.tool.Name(), commands[0].Table, commands[0], err)
	}
	return fmt.Errorf("%s: delete %d rules and chains: %w", w.tool.Name(), len(commands), err)
}

// left returns the commands for which there is something to delete.
func (w deletions) left(ctx context.Context) ([]command, error) {
	var chains []iptables.ChainID
	for _, c := range w.commands {
		chains = append(chains, c.ChainID)
	}
	sets, err := load(ctx, w.tool, chains)
	if err != nil {
		return nil, err
	}
	var left []command
	for _, set := range sets {
		copies := make(map[string]int)
		for _, r := range set.Rules {
			copies[r.Chain+" "+r.Spec]++
		}
		for _, c := range w.commands {
			if c.Table != set.Table {
				continue
			}
			key := c.Chain + " " + c.rule.Spec
			switch {
			case c.verb != "-D" && set.Chains[c.Chain], c.verb == "-D" && copies[key] > 0:
				left = append(left, c)
			}
			copies[key]--
		}
	}
	return left, nil
}
