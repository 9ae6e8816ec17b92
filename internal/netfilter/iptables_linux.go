package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// iptables is one variant of iptables for one family: what go-iptables does
// not do, a whole look and a whole change, each ended by its context.
type iptables interface {
	// name is the tool: "ip6tables-legacy".
	name() string

	// save returns what iptables-save prints, if one of the chains exists. If
	// none does it may return nothing. With an error, what it returns is not all.
	save(ctx context.Context, chains []chainID) (string, error)

	// restore applies what iptables-restore --noflush reads, each table's part
	// whole or not at all.
	restore(ctx context.Context, text string) error
}

// chainID is a chain and where it is.
type chainID struct{ table, chain string }

// command is what deletes one thing: "-D" a rule, "-F" a chain's rules, "-X" a
// chain.
type command struct {
	chainID
	verb string
	rule rule // of "-D"
}

func (c command) String() string {
	if c.verb == "-D" {
		return "-D " + c.chain + " " + c.rule.spec
	}
	return c.verb + " " + c.chain
}

// iptablesWork is what is to be deleted with one tool.
type iptablesWork struct {
	tool     iptables
	commands []command
}

func (w iptablesWork) lines() []string {
	var lines []string
	for _, c := range w.commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", w.tool.name(), c.table, c))
	}
	return lines
}

// findIPTables returns the commands that delete what the tool shows of t, also
// with an error. v6 is the tool's family.
func findIPTables(ctx context.Context, tool iptables, v6 bool, t Target) ([]command, error) {
	t.Addresses = slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool { return a.Is6() != v6 })
	sets, err := load(ctx, tool, relevant(t))
	var commands []command
	for _, set := range sets {
		switch set.table {
		case tableNAT:
			d := divide(t.Own, Siblings{Rules: t.Kept, Unknown: t.KeptUnknown}, v6)
			for _, c := range ownChains(t.Network, t.ContainerID) {
				commands = append(commands, set.own(c, t, d)...)
			}
		case tableFilter:
			commands = append(commands, set.forwarding(t)...)
			commands = append(commands, set.isolation(t.LastOnBridge)...)
		}
	}
	return commands, err
}

// relevant returns the chains without which there is nothing of t.
func relevant(t Target) []chainID {
	var ids []chainID
	for _, c := range ownChains(t.Network, t.ContainerID) {
		ids = append(ids, chainID{tableNAT, c.name})
	}
	if len(t.Addresses) > 0 {
		ids = append(ids, chainID{tableFilter, chainForward})
	}
	if t.LastOnBridge != "" {
		ids = append(ids, chainID{tableFilter, chainStage1}, chainID{tableFilter, chainStage2})
	}
	return ids
}

// load returns the tables that the tool shows. With an error they are not all.
func load(ctx context.Context, tool iptables, chains []chainID) ([]ruleset, error) {
	return loadSome(ctx, tool, chains, func(string) bool { return true })
}

// loadSome returns the tables with those rules that keep keeps, by their lines.
func loadSome(ctx context.Context, tool iptables, chains []chainID, keep func(line string) bool) ([]ruleset, error) {
	out, err := tool.save(ctx, chains)
	if err != nil {
		err = fmt.Errorf("%s: list the rules: %w", tool.name(), err)
	}
	var b strings.Builder
	for rest := out; rest != ""; {
		var line string
		if line, rest = cutLine(rest); keep(line) {
			b.WriteString(line + "\n")
		}
	}
	out = b.String()
	sets, parseErr := parseSave(out)
	if parseErr != nil {
		err = errors.Join(err, fmt.Errorf("%s: read the rules: %w", tool.name(), parseErr))
	}
	return sets, err
}

// own returns the commands for the container's chain c and what jumps to it.
//
// The chain can be another's too: that of the container's other interface on
// the network, as its name does not tell interfaces apart, or that of whoever's
// network and id make the same name. Then it stays, with what is not clearly
// this one's.
func (s ruleset) own(c ownChain, t Target, d division) []command {
	if !s.chains[c.name] {
		return nil
	}
	var jumps, body []rule
	for _, r := range s.rules {
		switch {
		case r.jumpsTo(c.name):
			jumps = append(jumps, r)
		case r.chain == c.name:
			body = append(body, r)
		}
	}
	all := slices.Concat(jumps, body)
	others := c.others(t.Network, t.ContainerID)
	kept := func(r rule) bool { return r.about(t.Siblings) || d.kept.has(s.table, r) }
	sibling := d.unknown || slices.ContainsFunc(all, kept)
	collision := slices.ContainsFunc(all, func(r rule) bool {
		return slices.ContainsFunc(r.comments(), func(v string) bool { return others[v] })
	})
	if sibling || collision {
		return s.remove(all, func(r rule) bool {
			// A sibling's comments are the same.
			mine := !sibling && slices.Contains(r.comments(), c.comment)
			own := !d.unknown && d.own.has(s.table, r) // else it may be a sibling's too
			return !kept(r) && (mine || own || r.about(t.Addresses))
		})
	}
	commands := s.remove(jumps, func(rule) bool { return true })
	id := chainID{s.table, c.name}
	if len(body) > 0 {
		commands = append(commands, command{chainID: id, verb: "-F"})
	}
	return append(commands, command{chainID: id, verb: "-X"})
}

// remove returns a command for each of the rules that is picked.
func (s ruleset) remove(rules []rule, pick func(rule) bool) []command {
	var commands []command
	for _, r := range rules {
		if pick(r) {
			commands = append(commands, command{chainID{s.table, r.chain}, "-D", r})
		}
	}
	return commands
}

// forwarding returns the commands for firewall's rules for the addresses,
// getPrivChainRules in its iptables.go, that no one else needs.
func (s ruleset) forwarding(t Target) []command {
	return s.remove(s.rules, func(r rule) bool {
		if r.chain != chainForward || len(r.args) < 2 {
			return false
		}
		addr, ok := single(r.args[1])
		if !ok || !slices.Contains(t.Addresses, addr) || slices.Contains(t.InUse, addr) || slices.Contains(t.Siblings, addr) {
			return false
		}
		return r.is("-s", r.args[1], "-j", "ACCEPT") ||
			r.is("-d", r.args[1], "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
	})
}

// isolation returns the commands for the rules that firewall's ingress policies
// make for a bridge, see its ingresspolicy.go.
func (s ruleset) isolation(bridge string) []command {
	if bridge == "" {
		return nil
	}
	comment := func(policy string) []string {
		return []string{"-m", "comment", "--comment", "CNI firewall plugin rules (ingressPolicy: " + policy + ")"}
	}
	words := func(before []string, policy string, after ...string) []string {
		return slices.Concat(before, comment(policy), after)
	}
	stage1 := [][]string{
		words([]string{"-i", bridge, "!", "-o", bridge}, "same-bridge", "-j", chainStage2),
		words([]string{"-i", bridge, "!", "-o", bridge}, "isolated", "-j", chainStage2),
		words([]string{"-i", bridge, "-o", bridge}, "isolated", "-j", "DROP"),
	}
	stage2 := words([]string{"-o", bridge}, "same-bridge|isolated", "-j", "DROP")
	return s.remove(s.rules, func(r rule) bool {
		switch r.chain {
		case chainStage1:
			return slices.ContainsFunc(stage1, func(args []string) bool { return r.is(args...) })
		case chainStage2:
			return r.is(stage2...)
		}
		return false
	})
}

func (r rule) is(args ...string) bool { return slices.Equal(r.args, args) }

// errLineFeed means that a rule cannot be written in a line of
// iptables-restore, where what follows would be taken for a command.
var errLineFeed = errors.New("a line feed in a rule")

// restoreText returns what iptables-restore reads, for commands in the order of
// their tables.
func restoreText(commands []command) (string, error) {
	var b strings.Builder
	table := ""
	for _, c := range commands {
		if c.table != table {
			if table != "" {
				b.WriteString("COMMIT\n")
			}
			table = c.table
			fmt.Fprintf(&b, "*%s\n", table)
		}
		line := c.String()
		if strings.Contains(line, "\n") {
			return "", errLineFeed
		}
		b.WriteString(line + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String(), nil
}

// apply runs the commands. It is all of a table or nothing, if nobody
// interferes; else one by one what is still there.
func (w iptablesWork) apply(ctx context.Context) error {
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
	// What someone else has deleted meanwhile is no failure.
	still, err := iptablesWork{w.tool, left}.left(ctx)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for i, c := range left {
		if !slices.ContainsFunc(still, func(s command) bool { return s.table == c.table && s.String() == c.String() }) {
			failures[i] = nil
		}
	}
	return errors.Join(failures...)
}

// restore runs the commands as one. The error names the command if there is
// one only.
func (w iptablesWork) restore(ctx context.Context, commands []command) error {
	text, err := restoreText(commands)
	if err == nil {
		err = w.tool.restore(ctx, text)
	}
	if err == nil {
		return nil
	}
	if len(commands) == 1 {
		return fmt.Errorf("%s -t %s %v: %w", w.tool.name(), commands[0].table, commands[0], err)
	}
	return fmt.Errorf("%s: delete %d rules and chains: %w", w.tool.name(), len(commands), err)
}

// left returns the commands for which there is something to delete.
func (w iptablesWork) left(ctx context.Context) ([]command, error) {
	var chains []chainID
	for _, c := range w.commands {
		chains = append(chains, c.chainID)
	}
	sets, err := load(ctx, w.tool, chains)
	if err != nil {
		return nil, err
	}
	var left []command
	for _, set := range sets {
		copies := make(map[string]int)
		for _, r := range set.rules {
			copies[r.chain+" "+r.spec]++
		}
		for _, c := range w.commands {
			if c.table != set.table {
				continue
			}
			key := c.chain + " " + c.rule.spec
			switch {
			case c.verb != "-D" && set.chains[c.chain], c.verb == "-D" && copies[key] > 0:
				left = append(left, c)
			}
			copies[key]--
		}
	}
	return left, nil
}
