package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// The tables of iptables, and the chains that the plugins portmap and firewall
// create for all containers.
const (
	tableNAT    = "nat"
	tableFilter = "filter"

	chainForward  = "CNI-FORWARD"
	chainAdmin    = "CNI-ADMIN"
	chainStage1   = "CNI-ISOLATION-STAGE-1"
	chainStage2   = "CNI-ISOLATION-STAGE-2"
	chainHostPort = "CNI-HOSTPORT-DNAT"
	chainMark     = "CNI-HOSTPORT-SETMARK"
	chainMasq     = "CNI-HOSTPORT-MASQ"
)

// findSaved returns the rules of the target in a variant of iptables, beside an error too.
func findSaved(ctx context.Context, tool iptables.Tool, t Target) ([]found, error) {
	commands, err := findCommands(ctx, tool, t)
	if len(commands) == 0 {
		return nil, err
	}
	var lines []string
	for _, c := range commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", tool.Name(), c.Table, c))
	}
	apply := func(ctx context.Context) error {
		return nft.In(tool.Sockets.NS, func() error { return runCommands(ctx, tool, t, commands) })
	}
	return []found{{lines, apply}}, err
}

// findCommands returns the commands that delete the rules of the target that a tool prints,
// beside an error too.
func findCommands(ctx context.Context, tool iptables.Tool, t Target) (commands []command, err error) {
	sets, err := readSaved(ctx, tool, t)
	for _, set := range sets {
		switch set.Table {
		case tableNAT:
			for _, c := range t.Chains() {
				commands = append(commands, ownChain(set, c, t, tool.V6())...)
			}
		case tableFilter:
			commands = append(commands, forwardingOf(set, soleAddresses(t, tool.V6()))...)
		}
	}
	return commands, err
}

// soleAddresses returns the addresses of a family whose rules of CNI-FORWARD are the
// target's.
func soleAddresses(t Target, v6 bool) (addrs []netip.Addr) {
	for _, a := range t.Addresses {
		if a.Is6() == v6 && !slices.Contains(t.InUse, a) && !slices.Contains(t.Siblings.Addresses, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// readSaved returns the tables that a tool shows, with the rules that can be about the
// target: parsing those of all containers would take longest. With an error they are not all.
func readSaved(ctx context.Context, tool iptables.Tool, t Target) ([]iptables.Ruleset, error) {
	var chains []iptables.ChainID
	var words []string
	for _, c := range t.Chains() {
		chains, words = append(chains, iptables.ChainID{Table: tableNAT, Chain: c.Name}), append(words, c.Name)
	}
	if forwards(ctx, tool, soleAddresses(t, tool.V6())) {
		chains = append(chains, iptables.ChainID{Table: tableFilter, Chain: chainForward})
	}
	for _, a := range t.Addresses {
		words = append(words, a.String())
	}
	sets, hidden, err := tool.Read(ctx, chains, func(line string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) })
	})
	if err == nil && len(hidden) > 0 {
		err = fmt.Errorf("table %s, chain %s: %w", hidden[0].Table, hidden[0].Chain, iptables.ErrHidden)
	}
	if err != nil {
		err = fmt.Errorf("%s: list the rules: %w", tool.Name(), err)
	}
	return sets, err
}

// forwards reports whether CNI-FORWARD can have a rule about one of the addresses. The
// kernel says so of the nf_tables variant, so that no process is started after a DEL.
func forwards(ctx context.Context, tool iptables.Tool, addrs []netip.Addr) (can bool) {
	if tool.Legacy || len(addrs) == 0 {
		return len(addrs) > 0
	}
	var values [][]byte
	for _, a := range addrs {
		values = append(values, a.AsSlice())
	}
	err := tool.Sockets.Do(ctx, func(c *nft.Conn) error {
		return c.Rules(tool.Table(tableFilter), chainForward, values, func(nft.Rule) error { can = true; return nil })
	})
	return can || err != nil
}

// ownChain returns the commands for the container's chain c and the jumps to it.
//
// The chain can belong to others too: to the container's other interface on the
// network, as its name does not contain the interface, or to a container whose
// network and ID make the same name. Then it stays, with all rules that are not
// certainly this attachment's.
func ownChain(s iptables.Ruleset, c Chain, t Target, v6 bool) []command {
	if !s.Chains[c.Name] {
		return nil
	}
	var jumps, body []iptables.Rule
	for _, r := range s.Rules {
		switch {
		case r.Words.Target() == c.Name:
			jumps = append(jumps, r)
		case r.Chain == c.Name:
			body = append(body, r)
		}
	}
	all := slices.Concat(jumps, body)
	others := c.Others(t.Owner)
	kept := func(r iptables.Rule) bool {
		return about(r.Words, t.Siblings.Addresses) || !about(r.Words, t.Addresses) && concerns(t.Siblings.Rules, v6, r.Words)
	}
	sibling := t.Siblings.Unknown || slices.ContainsFunc(all, kept)
	collision := slices.ContainsFunc(all, func(r iptables.Rule) bool {
		return slices.ContainsFunc(r.Comments, func(v string) bool { return others[v] })
	})
	if sibling || collision {
		return deleting(s, all, func(r iptables.Rule) bool {
			// A sibling's comments are the same.
			mine := !sibling && slices.Contains(r.Comments, c.Comment)
			own := !t.Siblings.Unknown && concerns(t.Own, v6, r.Words) // else it may be a sibling's too
			return !kept(r) && (mine || own || about(r.Words, t.Addresses))
		})
	}
	commands := deleting(s, jumps, func(iptables.Rule) bool { return true })
	id := iptables.ChainID{Table: s.Table, Chain: c.Name}
	if len(body) > 0 {
		commands = append(commands, command{ChainID: id, verb: "-F"})
	}
	return append(commands, command{ChainID: id, verb: "-X"})
}

// concerns reports whether a rule of the container's chain in one family, or a jump to it, is
// one of the attachment's whose rules these are: by an address, a subnet, or a port.
func concerns(by []Rule, v6 bool, w iptables.Words) bool {
	return slices.ContainsFunc(by, func(r Rule) bool {
		return slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool {
			p, err := PlainPrefix(p)
			if err != nil || p.Addr().Is6() != v6 {
				return false
			}
			if r.Kind == Publish {
				return w.Has(portWords(r.Port)...)
			}
			return about(w, []netip.Addr{p.Addr()}) || w.Has("-d="+p.Masked().String()) || w.Has("-j=MASQUERADE")
		})
	})
}

// portWords are the words of a rule about a port of the host.
func portWords(p HostPort) []string {
	return []string{"--dport=" + strconv.Itoa(int(p.HostPort)), "-p=" + p.Protocol}
}

// deleting returns a command for each of the rules that is picked.
func deleting(s iptables.Ruleset, rules []iptables.Rule, pick func(iptables.Rule) bool) (commands []command) {
	for _, r := range rules {
		if pick(r) {
			commands = append(commands, command{iptables.ChainID{Table: s.Table, Chain: r.Chain}, "-D", r.Spec})
		}
	}
	return commands
}

// forwardingOf returns the commands for firewall's rules for the addresses,
// getPrivChainRules in its iptables.go.
func forwardingOf(s iptables.Ruleset, addrs []netip.Addr) []command {
	var specs []string
	for _, a := range addrs {
		one := netip.PrefixFrom(a, a.BitLen()).String()
		specs = append(specs, "-s "+one+" -j ACCEPT", "-d "+one+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	}
	return deleting(s, s.Rules, func(r iptables.Rule) bool { return r.Chain == chainForward && slices.Contains(specs, r.Spec) })
}

// command deletes a rule ("-D"), the rules of a chain ("-F"), or a chain ("-X").
type command struct {
	iptables.ChainID
	verb string
	spec string // of "-D"
}

func (c command) String() string {
	return strings.TrimSuffix(c.verb+" "+c.Chain+" "+c.spec, " ")
}

// runCommands runs the commands of each table as one. If that fails, because others
// interfere, it runs those one by one for which there is still something to delete.
func runCommands(ctx context.Context, tool iptables.Tool, t Target, commands []command) error {
	err := restore(ctx, tool, commands)
	if err == nil || ctx.Err() != nil {
		return err
	}
	still, findErr := findCommands(ctx, tool, t)
	errs := []error{findErr}
	for _, c := range still {
		if slices.Contains(commands, c) {
			errs = append(errs, restore(ctx, tool, []command{c}))
		}
	}
	return joined.Errors(errs...)
}

// restore runs the commands as one. The error names the command if there is only
// one.
func restore(ctx context.Context, tool iptables.Tool, commands []command) (err error) {
	var b strings.Builder
	for i, c := range commands {
		if strings.Contains(c.String(), "\n") { // the tool would take the rest for a command
			err = fmt.Errorf("table %s: %q: a line feed in a rule", c.Table, c)
		}
		if i == 0 || commands[i-1].Table != c.Table {
			b.WriteString("*" + c.Table + "\n")
		}
		b.WriteString(c.String() + "\n")
		if i+1 == len(commands) || commands[i+1].Table != c.Table {
			b.WriteString("COMMIT\n")
		}
	}
	if err == nil {
		err = tool.Restore(ctx, b.String())
	}
	switch {
	case err == nil:
		return nil
	case len(commands) == 1:
		return fmt.Errorf("%s -t %s %v: %w", tool.Name(), commands[0].Table, commands[0], err)
	}
	return fmt.Errorf("%s: delete %d rules and chains: %w", tool.Name(), len(commands), err)
}
