package reference

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// The tables of iptables, and the chains that the plugins portmap and firewall
// create for all containers.
const (
	tableNAT    = "nat"
	tableFilter = "filter"

	chainForward  = "CNI-FORWARD"
	chainStage1   = "CNI-ISOLATION-STAGE-1"
	chainStage2   = "CNI-ISOLATION-STAGE-2"
	chainHostPort = "CNI-HOSTPORT-DNAT"
	chainMark     = "CNI-HOSTPORT-SETMARK"
	chainMasq     = "CNI-HOSTPORT-MASQ"
)

// find returns the commands that delete the rules of the target that a tool prints, beside
// an error too.
func find(ctx context.Context, tool iptables.Tool, t fwrules.Target) (commands []command, err error) {
	sets, err := load(ctx, tool, t)
	for _, set := range sets {
		switch set.Table {
		case tableNAT:
			for _, c := range t.Chains() {
				commands = append(commands, own(set, c, t, tool.V6())...)
			}
		case tableFilter:
			commands = append(commands, forwarding(set, forwarded(t, tool.V6()))...)
		}
	}
	return commands, err
}

// forwarded returns the addresses of a family whose rules of CNI-FORWARD are the
// target's.
func forwarded(t fwrules.Target, v6 bool) (addrs []netip.Addr) {
	for _, a := range t.Addresses {
		if a.Is6() == v6 && !slices.Contains(t.InUse, a) && !slices.Contains(t.Siblings, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// load returns the tables that a tool shows, with the rules that can be about the target:
// parsing those of all containers would take longest. With an error they are not all.
func load(ctx context.Context, tool iptables.Tool, t fwrules.Target) ([]iptables.Ruleset, error) {
	var chains []iptables.ChainID
	var words []string
	for _, c := range t.Chains() {
		chains, words = append(chains, iptables.ChainID{Table: tableNAT, Chain: c.Name}), append(words, c.Name)
	}
	if forwards(ctx, tool, forwarded(t, tool.V6())) {
		chains = append(chains, iptables.ChainID{Table: tableFilter, Chain: chainForward})
	}
	for _, a := range t.Addresses {
		words = append(words, a.String())
	}
	out, err := tool.Save(ctx, chains)
	if err != nil {
		err = fmt.Errorf("%s: list the rules: %w", tool.Name(), err)
	}
	sets, parseErr := iptables.ParseSome(out, func(line string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) })
	})
	if parseErr != nil {
		err = errors.Join(err, fmt.Errorf("%s: read the rules: %w", tool.Name(), parseErr))
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
	err := tool.Rules(ctx, iptables.ChainID{Table: tableFilter, Chain: chainForward}, values, func(nft.Rule) error {
		can = true
		return nil
	})
	return can || err != nil
}

// own returns the commands for the container's chain c and the jumps to it.
//
// The chain can belong to others too: to the container's other interface on the
// network, as its name does not contain the interface, or to a container whose
// network and ID make the same name. Then it stays, with all rules that are not
// certainly this attachment's.
func own(s iptables.Ruleset, c fwrules.Chain, t fwrules.Target, v6 bool) []command {
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
	kept := func(r iptables.Rule) bool {
		w := wordsOf(r)
		return w.about(t.Siblings) || !w.about(t.Addresses) && owned(t.Kept, v6, w)
	}
	sibling := t.KeptUnknown || slices.ContainsFunc(all, kept)
	collision := slices.ContainsFunc(all, func(r iptables.Rule) bool {
		return slices.ContainsFunc(r.Comments(), func(v string) bool { return others[v] })
	})
	if sibling || collision {
		return remove(s, all, func(r iptables.Rule) bool {
			// A sibling's comments are the same.
			mine := !sibling && slices.Contains(r.Comments(), c.Comment)
			own := !t.KeptUnknown && owned(t.Own, v6, wordsOf(r)) // else it may be a sibling's too
			return !kept(r) && (mine || own || wordsOf(r).about(t.Addresses))
		})
	}
	commands := remove(s, jumps, func(iptables.Rule) bool { return true })
	id := iptables.ChainID{Table: s.Table, Chain: c.Name}
	if len(body) > 0 {
		commands = append(commands, command{ChainID: id, verb: "-F"})
	}
	return append(commands, command{ChainID: id, verb: "-X"})
}

// owned reports whether a rule of the container's chain in one family, or a jump to it, is
// one of the attachment's whose rules these are: by an address, a subnet, or a port.
func owned(by fwrules.Rules, v6 bool, w words) bool {
	for _, m := range by.Masquerade {
		for _, p := range m.Addresses {
			p, err := fwrules.PlainPrefix(p)
			if err != nil || p.Addr().Is6() != v6 {
				continue
			}
			if w.about([]netip.Addr{p.Addr()}) || w.has("-d="+p.Masked().String()) || w.has("-j=MASQUERADE") {
				return true
			}
		}
	}
	for _, h := range by.HostPorts {
		if v6 && !h.V6.IsValid() || !v6 && !h.V4.IsValid() {
			continue
		}
		if slices.ContainsFunc(h.Ports, func(p fwrules.HostPort) bool { return w.has(portWords(p)...) }) {
			return true
		}
	}
	return false
}

// portWords are the words of a rule about a port of the host.
func portWords(p fwrules.HostPort) []string {
	return []string{"--dport=" + strconv.Itoa(int(p.HostPort)), "-p=" + p.Protocol}
}

// remove returns a command for each of the rules that is picked.
func remove(s iptables.Ruleset, rules []iptables.Rule, pick func(iptables.Rule) bool) (commands []command) {
	for _, r := range rules {
		if pick(r) {
			commands = append(commands, command{iptables.ChainID{Table: s.Table, Chain: r.Chain}, "-D", r.Spec})
		}
	}
	return commands
}

// forwarding returns the commands for firewall's rules for the addresses,
// getPrivChainRules in its iptables.go.
func forwarding(s iptables.Ruleset, addrs []netip.Addr) []command {
	var specs []string
	for _, a := range addrs {
		one := netip.PrefixFrom(a, a.BitLen()).String()
		specs = append(specs, "-s "+one+" -j ACCEPT", "-d "+one+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	}
	return remove(s, s.Rules, func(r iptables.Rule) bool { return r.Chain == chainForward && slices.Contains(specs, r.Spec) })
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

// saved are rules and chains of a target in one variant and family.
type saved struct {
	form     Form
	tool     iptables.Tool
	target   fwrules.Target
	commands []command
}

// Lines returns a command of the tool for each.
func (w saved) Lines() (lines []string) {
	for _, c := range w.commands {
		lines = append(lines, fmt.Sprintf("%s -t %s %v", w.tool.Name(), c.Table, c))
	}
	return lines
}

// Apply runs the commands of each table as one. If that fails, because others interfere,
// it runs those one by one for which there is still something to delete.
func (w saved) Apply(ctx context.Context) error {
	return w.form.in(func() error {
		err := w.restore(ctx, w.commands)
		if err == nil || ctx.Err() != nil {
			return err
		}
		still, err := find(ctx, w.tool, w.target)
		errs := []error{err}
		for _, c := range still {
			if slices.Contains(w.commands, c) {
				errs = append(errs, w.restore(ctx, []command{c}))
			}
		}
		return errors.Join(errs...)
	})
}

// restore runs the commands as one. The error names the command if there is only
// one.
func (w saved) restore(ctx context.Context, commands []command) error {
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
