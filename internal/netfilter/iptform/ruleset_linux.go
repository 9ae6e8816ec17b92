package iptform

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
// The chain can belong to others too: to the container's other interface on the
// network, as its name does not contain the interface, or to a container whose
// network and ID make the same name. Then it stays, with all rules that are not
// certainly this attachment's.
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
