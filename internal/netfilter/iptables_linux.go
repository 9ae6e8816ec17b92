package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// xtables is one variant of iptables for one family: what go-iptables does
// not do, a whole look and a whole change, each ended by its context.
type xtables interface {
	// name is the tool: "ip6tables-legacy".
	Name() string

	// save returns what iptables-save prints, if one of the chains exists. If
	// none does it may return nothing. With an error, what it returns is not all.
	Save(ctx context.Context, chains []iptables.ChainID) (string, error)

	// restore applies what iptables-restore --noflush reads, each table's part
	// whole or not at all.
	Restore(ctx context.Context, text string) error
}

// command is what deletes one thing: "-D" a rule, "-F" a chain's rules, "-X" a
// chain.
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

// tool is a variant of iptables for one family.
type tool struct {
	xtables
	v6, legacy bool
}

// tools are both variants of both families.
func (f iptForm) tools() []tool {
	if f.fakes != nil {
		return f.fakes
	}
	var all []tool
	for _, v6 := range []bool{false, true} {
		for _, legacy := range []bool{false, true} {
			all = append(all, tool{f.maker(v6, legacy).Tool, v6, legacy})
		}
	}
	return all
}

// Find returns the rules of the target that exist, by variant and family.
func (f iptForm) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	whole := wholeFootprint(t)
	err = f.in(func() error {
		var errs []error
		for _, tool := range f.tools() {
			commands, err := tool.find(ctx, whole)
			errs = append(errs, err)
			if len(commands) > 0 {
				all = append(all, iptFound{f, deletions{tool, commands}})
			}
		}
		return errors.Join(errs...)
	})
	return all, err
}

// iptFound are rules and chains of a target in one variant and family.
type iptFound struct {
	form iptForm
	deletions
}

// Lines returns a command of the tool for each.
func (w iptFound) Lines() []string {
	var lines []string
	for _, c := range w.commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", w.tool.Name(), c.Table, c))
	}
	return lines
}

// Apply deletes the rules and chains.
func (w iptFound) Apply(ctx context.Context) error {
	return w.form.in(func() error { return w.apply(ctx) })
}

// Intact reports whether all of them still exist.
func (w iptFound) Intact(ctx context.Context) (yes bool, err error) {
	err = w.form.in(func() error {
		left, err := w.left(ctx)
		yes = len(left) == len(w.commands)
		return err
	})
	return yes, err
}

// Legacy reports whether they are of the legacy variant.
func (w iptFound) Legacy() bool { return w.tool.legacy }

// deletions are commands of one tool.
type deletions struct {
	tool     tool
	commands []command
}

// find returns the commands that delete the rules of f that the tool prints, beside
// an error too.
func (t tool) find(ctx context.Context, f footprint) ([]command, error) {
	v6 := t.v6
	relevant := f.relevant(v6)
	if len(relevant) == 0 {
		return nil, nil
	}
	sets, err := loadSome(ctx, t, relevant, f.concerns)
	var commands []command
	for _, set := range sets {
		switch set.Table {
		case tableNAT:
			t, beside := f.Target, set.beside(f)
			t.Siblings = slices.Concat(beside, t.Siblings)
			for _, c := range f.chains() {
				d := f.divide(v6)
				d.unknown = d.unknown || entrance(c.Name) == "POSTROUTING" &&
					slices.ContainsFunc(beside, func(a netip.Addr) bool { return !slices.Contains(f.Siblings, a) })
				commands = append(commands, set.own(c, t, d)...)
			}
		case tableFilter:
			commands = append(commands, set.forwarding(f.forward)...)
			commands = append(commands, set.isolation(f.LastOnBridge)...)
		}
	}
	return commands, err
}

// ruleset is the content of a table.
type ruleset struct{ iptables.Ruleset }

// load returns the tables that the tool shows. With an error they are not all.
func load(ctx context.Context, tool xtables, chains []iptables.ChainID) ([]ruleset, error) {
	return loadSome(ctx, tool, chains, func(string) bool { return true })
}

// loadSome returns the tables with those rules that keep keeps, by their lines.
func loadSome(ctx context.Context, tool xtables, chains []iptables.ChainID, keep func(line string) bool) ([]ruleset, error) {
	out, err := tool.Save(ctx, chains)
	if err != nil {
		err = fmt.Errorf("%s: list the rules: %w", tool.Name(), err)
	}
	var b strings.Builder
	for rest := out; rest != ""; {
		var line string
		if line, rest = iptables.CutLine(rest); keep(line) {
			b.WriteString(line + "\n")
		}
	}
	out = b.String()
	var sets []ruleset
	parsed, parseErr := iptables.ParseSave(out)
	for _, set := range parsed {
		sets = append(sets, ruleset{set})
	}
	if parseErr != nil {
		err = errors.Join(err, fmt.Errorf("%s: read the rules: %w", tool.Name(), parseErr))
	}
	return sets, err
}

// own returns the commands for the container's chain c and the jumps to it.
//
// The chain can be another's too: that of the container's other interface on
// the network, as its name does not tell interfaces apart, or that of whoever's
// network and id make the same name. Then it stays, with what is not clearly
// this one's.
func (s ruleset) own(c fwrules.Chain, t fwrules.Target, d division) []command {
	if !s.Chains[c.Name] {
		return nil
	}
	var jumps, body []iptables.Rule
	for _, r := range s.Rules {
		switch {
		case r.JumpsTo(c.Name):
			jumps = append(jumps, r)
		case r.Chain == c.Name:
			body = append(body, r)
		}
	}
	all := slices.Concat(jumps, body)
	others := c.Others(t.Owner)
	kept := func(r iptables.Rule) bool { return r.About(t.Siblings) || d.kept.has(s.Table, r) }
	sibling := d.unknown || slices.ContainsFunc(all, kept)
	collision := slices.ContainsFunc(all, func(r iptables.Rule) bool {
		return slices.ContainsFunc(r.Comments(), func(v string) bool { return others[v] })
	})
	if sibling || collision {
		return s.remove(all, func(r iptables.Rule) bool {
			// A sibling's comments are the same.
			mine := !sibling && slices.Contains(r.Comments(), c.Comment)
			own := !d.unknown && d.own.has(s.Table, r) // else it may be a sibling's too
			return !kept(r) && (mine || own || r.About(t.Addresses))
		})
	}
	commands := s.remove(jumps, func(iptables.Rule) bool { return true })
	id := inTable(s.Table, c.Name)
	if len(body) > 0 {
		commands = append(commands, command{ChainID: id, verb: "-F"})
	}
	return append(commands, command{ChainID: id, verb: "-X"})
}

// remove returns a command for each of the rules that is picked.
func (s ruleset) remove(rules []iptables.Rule, pick func(iptables.Rule) bool) []command {
	var commands []command
	for _, r := range rules {
		if pick(r) {
			commands = append(commands, command{inTable(s.Table, r.Chain), "-D", r})
		}
	}
	return commands
}

// beside returns the addresses of the container's other interfaces on the same
// network, which share its chain. It finds them only if f's own are known.
func (s ruleset) beside(f footprint) (found []netip.Addr) {
	own := f.Chains()[0]
	if !f.lookBeside || !f.masquerade || len(f.Addresses) == 0 {
		return nil
	}
	for _, r := range s.Rules {
		if !r.JumpsTo(own.Name) || !slices.Contains(r.Comments(), own.Comment) || len(r.Args) < 2 || r.Args[0] != "-s" {
			continue
		}
		if a, ok := iptables.SingleAddress(r.Args[1]); ok && !slices.Contains(f.Addresses, a) {
			found = append(found, a)
		}
	}
	return found
}

// forwarding returns the commands for firewall's rules for the addresses,
// getPrivChainRules in its iptables.go.
func (s ruleset) forwarding(addrs []netip.Addr) []command {
	return s.remove(s.Rules, func(r iptables.Rule) bool {
		if r.Chain != chainForward || len(r.Args) < 2 {
			return false
		}
		if addr, ok := iptables.SingleAddress(r.Args[1]); !ok || !slices.Contains(addrs, addr) {
			return false
		}
		return r.Is("-s", r.Args[1], "-j", "ACCEPT") ||
			r.Is("-d", r.Args[1], "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
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
	return s.remove(s.Rules, func(r iptables.Rule) bool {
		switch r.Chain {
		case chainStage1:
			return slices.ContainsFunc(stage1, func(args []string) bool { return r.Is(args...) })
		case chainStage2:
			return r.Is(stage2...)
		}
		return false
	})
}

// apply runs the commands. It is all of a table or nothing, if nobody
// interferes; else one by one what is still there.
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

// restore runs the commands as one. The error names the command if there is
// one only.
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
