package reference

import (
	"cmp"
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

// savedRules are the plugins' rules in one family and variant of iptables at one time.
type savedRules struct {
	tool   tool
	hidden []string // tables that the tool may not show

	about map[chainWord][]iptables.Rule
}

// chainWord is a word of a rule in a chain: its target, an address, or a port.
type chainWord struct {
	iptables.ChainID
	word string
}

// saver is an [iptables.Tool].
type saver interface {
	SaveTables(ctx context.Context, tables []string) (out string, hidden []string, err error)
}

// readSaved reads those of the rules that keep keeps, by their lines. They are steady
// unless they have changed meanwhile, several times.
func readSaved(ctx context.Context, t tool, keep func(line string) bool) (d *savedRules, steady bool, err error) {
	d = &savedRules{tool: t, about: make(map[chainWord][]iptables.Rule)}
	var out string
	err = nft.Repeat(ctx, nft.MostReads, func() (err error) {
		out, d.hidden, err = t.xtables.(saver).SaveTables(ctx, []string{tableNAT, tableFilter})
		return err
	})
	if steady = err == nil; err != nil && !errors.Is(err, nft.ErrChanged) {
		return nil, false, fmt.Errorf("%s: list the rules: %w", t.Name(), err)
	}
	return d, steady, d.parse(out, keep)
}

// parse reads the output of iptables-save. It passes over rules of chains that the
// plugins do not make.
func (d *savedRules) parse(out string, keep func(line string) bool) error {
	table := ""
	for rest := out; rest != ""; {
		var line string
		line, rest = iptables.CutLine(rest)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case table != tableNAT && table != tableFilter:
		case strings.HasPrefix(line, "-A "):
			chain, _, _ := strings.Cut(line[len("-A "):], " ")
			if !builtIn(chain) && !strings.HasPrefix(chain, "CNI-") || !keep(line) {
				continue
			}
			r, err := iptables.ParseRule(line)
			if err != nil {
				return err
			}
			d.add(inTable(table, chain), r)
		}
	}
	return nil
}

// builtIn reports whether a chain is there whenever its table is.
func builtIn(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

func (d *savedRules) add(id iptables.ChainID, r iptables.Rule) {
	for i := 0; i+1 < len(r.Args); i++ {
		switch value := r.Args[i+1]; r.Args[i] {
		case "-j", "-g", "-s", "-d", "--dport":
			d.about[chainWord{id, value}] = append(d.about[chainWord{id, value}], r)
		case "--comment":
			i++ // a value can look like an option
		}
	}
}

// linesOf returns a function that reports whether a line of iptables-save can be of r.
func linesOf(r fwrules.Rules) func(line string) bool {
	words := []string{"CNI-HOSTPORT-", "-j " + chainForward, "CNI-ISOLATION-"}
	for _, m := range r.Masquerade {
		words = append(words, m.Chains()[0].Name)
	}
	for _, h := range r.HostPorts {
		words = append(words, h.Chains()[1].Name)
	}
	for _, f := range r.Forward {
		for _, p := range f.Addresses {
			words = append(words, p.Addr().Unmap().String())
		}
	}
	return func(line string) bool {
		if strings.HasPrefix(line, "-A "+chainHostPort+" ") { // has a rule for each container
			return slices.ContainsFunc(words[3:], func(w string) bool { return strings.Contains(line, w) })
		}
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) })
	}
}

// hides returns an error if the rules may be in a table that the tool does not show.
func (d *savedRules) hides(r fwrules.Rules) error {
	table := tableNAT
	if len(r.Forward) > 0 {
		table = tableFilter
	}
	if slices.Contains(d.hidden, table) {
		return fmt.Errorf("%s: table %s: %w", d.tool.Name(), table, iptables.ErrHidden)
	}
	return nil
}

// rule returns an error unless a chain has a rule about the word that matches.
func (d *savedRules) rule(table, chain, word string, matches func(iptables.Rule) bool) error {
	if slices.ContainsFunc(d.about[chainWord{inTable(table, chain), word}], matches) {
		return nil
	}
	return fmt.Errorf("%s: a rule of chain %s in table %s about %s is not there", d.tool.Name(), chain, table, word)
}

func anyRule(iptables.Rule) bool { return true }

// has returns an error that names the first of the rules of the tool's family that is not
// there.
func (d *savedRules) has(r fwrules.Rules) error {
	var errs []error
	for _, m := range r.Masquerade {
		for _, p := range m.Addresses {
			if p, err := fwrules.PlainPrefix(p); err != nil || p.Addr().Is6() == d.tool.v6 {
				errs = append(errs, cmp.Or(err, d.masquerades(m.Chains()[0].Name, p)))
			}
		}
	}
	for _, h := range r.HostPorts {
		to := h.V4
		if d.tool.v6 {
			to = h.V6
		}
		for _, p := range h.Ports {
			host, _, ok, err := p.Match(!d.tool.v6)
			if err != nil || ok && to.IsValid() {
				errs = append(errs, cmp.Or(err, d.forwards(h, p, host, netip.AddrPortFrom(to.Addr().Unmap(), p.ContainerPort))))
			}
		}
	}
	for _, f := range r.Forward {
		for _, p := range f.Addresses {
			if a := p.Addr().Unmap(); a.Is6() == d.tool.v6 {
				errs = append(errs, d.accepts(f, a))
			}
		}
	}
	return first(errs)
}

// masquerades is SetupIPMasq in pkg/ip/ipmasq_iptables_linux.go.
func (d *savedRules) masquerades(chain string, p netip.Prefix) error {
	own := inTable(tableNAT, chain)
	err := d.rule(tableNAT, "POSTROUTING", chain, func(r iptables.Rule) bool { return r.About([]netip.Addr{p.Addr()}) })
	return first([]error{err, d.rule(tableNAT, chain, "MASQUERADE", anyRule), d.within(own, p)})
}

// within returns an error unless packets to the subnet keep their source.
func (d *savedRules) within(own iptables.ChainID, p netip.Prefix) error {
	if p.Bits() == 0 {
		return nil // iptables-save leaves it out
	}
	return d.rule(own.Table, own.Chain, p.Masked().String(), func(r iptables.Rule) bool { return r.Has("-j", "ACCEPT") })
}

// forwards is forwardPorts in plugins/meta/portmap/portmap_iptables.go.
func (d *savedRules) forwards(h fwrules.HostPorts, p fwrules.HostPort, host netip.Addr, to netip.AddrPort) error {
	own, port := h.Chains()[1].Name, strconv.Itoa(int(p.HostPort))
	about := func(r iptables.Rule) bool {
		toHost := r.Value("-d") == ""
		if host.IsValid() {
			toHost = r.About([]netip.Addr{host})
		}
		return toHost && names(r, p)
	}
	errs := []error{
		d.rule(tableNAT, "PREROUTING", chainHostPort, anyRule), d.rule(tableNAT, "OUTPUT", chainHostPort, anyRule),
		d.rule(tableNAT, chainHostPort, own, func(r iptables.Rule) bool { return names(r, p) }),
		d.rule(tableNAT, own, port, func(r iptables.Rule) bool { return about(r) && r.Has("--to-destination", to.String()) }),
	}
	if !h.SNAT {
		return first(errs)
	}
	mark := "" // the chain that marks packets, from the container's subnet and the host's loopback address
	marks := func(from string) error {
		return d.rule(tableNAT, own, port, func(r iptables.Rule) bool {
			target := r.Value("-j")
			if !about(r) || target == "DNAT" || !h.MasqAll && !r.Has("-s", from) {
				return false
			}
			mark = target
			return true
		})
	}
	if d.tool.v6 {
		errs = append(errs, marks(h.V6.Masked().String()))
	} else {
		errs = append(errs, marks(h.V4.Masked().String()), marks(loopback().String()+"/32"))
	}
	if strings.HasPrefix(mark, "CNI-HOSTPORT-") { // else it is an administrator's
		errs = append(errs, d.rule(tableNAT, mark, "MARK", anyRule),
			d.rule(tableNAT, "POSTROUTING", chainMasq, anyRule), d.rule(tableNAT, chainMasq, "MASQUERADE", anyRule))
	}
	return first(errs)
}

// accepts is addRules in plugins/meta/firewall/iptables.go for one address, or
// setupIsolationChains in its ingresspolicy.go.
func (d *savedRules) accepts(f fwrules.Forward, a netip.Addr) error {
	if !f.IngressOnly {
		one := netip.PrefixFrom(a, a.BitLen()).String()
		accepts := func(option string) error {
			return d.rule(tableFilter, chainForward, one, func(r iptables.Rule) bool { return r.Has(option, one) && r.Has("-j", "ACCEPT") })
		}
		return first([]error{d.rule(tableFilter, "FORWARD", chainForward, anyRule), accepts("-d"), accepts("-s")})
	}
	errs := []error{
		d.rule(tableFilter, "FORWARD", chainStage1, anyRule),
		d.rule(tableFilter, chainStage1, chainStage2, func(r iptables.Rule) bool { return r.Has("-i", f.Bridge) }),
		d.rule(tableFilter, chainStage2, "DROP", func(r iptables.Rule) bool { return r.Has("-o", f.Bridge) }),
	}
	if f.Ingress == "isolated" {
		errs = append(errs, d.rule(tableFilter, chainStage1, "DROP", func(r iptables.Rule) bool { return r.Has("-i", f.Bridge) && r.Has("-o", f.Bridge) }))
	}
	return first(errs)
}
