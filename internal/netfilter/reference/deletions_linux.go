package reference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
)

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
	text, err := restoring(commands)
	if err == nil {
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

// restoring returns the input of iptables-restore for the commands.
func restoring(commands []command) (string, error) {
	var b strings.Builder
	table := ""
	for _, c := range commands {
		if strings.Contains(c.String(), "\n") { // the tool would take the rest for a command
			return "", fmt.Errorf("table %s: %q: a line feed in a rule", c.Table, c)
		}
		if c.Table != table {
			if table != "" {
				b.WriteString("COMMIT\n")
			}
			table = c.Table
			b.WriteString("*" + table + "\n")
		}
		b.WriteString(c.String() + "\n")
	}
	return b.String() + "COMMIT\n", nil
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
