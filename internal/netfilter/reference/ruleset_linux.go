package reference

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
			for _, c := range f.Chains() {
				commands = append(commands, set.own(c, f, v6)...)
			}
		case tableFilter:
			commands = append(commands, set.forwarding(f.forward(v6))...)
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
func (s ruleset) own(c fwrules.Chain, f footprint, v6 bool) []command {
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
	others := c.Others(f.Owner)
	kept := func(r iptables.Rule) bool {
		return r.About(f.Siblings) || !r.About(f.Addresses) && owned(f.Kept, v6, r)
	}
	sibling := f.KeptUnknown || slices.ContainsFunc(all, kept)
	collision := slices.ContainsFunc(all, func(r iptables.Rule) bool {
		return slices.ContainsFunc(r.Comments(), func(v string) bool { return others[v] })
	})
	if sibling || collision {
		return s.remove(all, func(r iptables.Rule) bool {
			// A sibling's comments are the same.
			mine := !sibling && slices.Contains(r.Comments(), c.Comment)
			own := !f.KeptUnknown && owned(f.Own, v6, r) // else it may be a sibling's too
			return !kept(r) && (mine || own || r.About(f.Addresses))
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
