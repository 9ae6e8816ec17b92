package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// The reference plugins' rules, which this module looks for, finds and deletes, and never
// makes. Until 2028 it does the same for what earlier versions of it have made in these
// forms. iptables has a chain for each container and network, in chains that all containers
// share:
//
//	CNI-<hash>                              bridge, ptp: ipMasq
//	CNI-DN-<hash>, CNI-HOSTPORT-*           portmap
//	CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* firewall
//
// nftables has one rule for each address and port, in tables that all containers share:
//
//	inet cni_plugins_masquerade   bridge, ptp: ipMasq    the attachment's comment
//	ip, ip6 cni_hostport          portmap                the container ID as comment
//	bridge nat                    bridge: macspoofchk    chains and a comment of the interface

// reference are the plugins' rules at one time, in all forms. They are safe for concurrent use.
type reference struct {
	rules  map[place][]shown
	hidden map[place]bool // tables that a tool may not show
}

// place is where a rule is looked for: a chain, and a word of the rule, which for nftables
// is its comment.
type place struct{ tool, table, chain, word string }

// shown is a rule as far as it identifies itself: versions of the tools write the rest
// differently.
type shown interface {
	// Has reports whether the rule has the values.
	Has(values ...string) bool
}

// constants are the values that a rule of nftables compares with and loads and its verdicts,
// one after the other, which Has takes in their order.
type constants string

func (c constants) Has(values ...string) bool {
	rest := string(c)
	for _, v := range values {
		i := strings.Index(rest, v)
		if i < 0 {
			return false
		}
		rest = rest[i+len(v):]
	}
	return true
}

// readReference reads the rules. It reads them again if they change meanwhile, a few times, and
// then returns beside [nft.ErrChanged] what it has seen.
func readReference(ctx context.Context, sockets nft.Sockets, tools []iptables.Tool) (t reference, err error) {
	read := func(c *nft.Conn) error {
		t = reference{make(map[place][]shown), make(map[place]bool)}
		if c != nil {
			if err := t.readTables(c); err != nil {
				return wrapNFT(err)
			}
		}
		return nft.In(sockets.NS, func() error {
			for _, tool := range tools {
				if err := t.readSaved(ctx, tool); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = sockets.Do(ctx, func(c *nft.Conn) error {
		return c.Look(ctx, nft.MostReads, func() error { return read(c) })
	})
	if errors.Is(err, nft.ErrNotSupported) {
		err = read(nil)
	}
	return t, err
}

// readTables reads the rules in nftables.
func (t reference) readTables(c *nft.Conn) error {
	for _, table := range []nft.Table{masqueradeTable(), hostportTable(nft.FamilyIPv4), hostportTable(nft.FamilyIPv6), spoofTable()} {
		err := c.Rules(table, "", nil, func(r nft.Rule) error {
			at := place{"", table.String(), r.Chain, r.Comment}
			t.rules[at] = append(t.rules[at], constantsOf(r))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// drops stands for the verdict of a rule.
const drops = "drop"

// jump stands for the verdict of a rule that leads to a chain. The name of a chain may be a
// part of another's, such as hostports of hostip_hostports.
func jump(chain string) string { return "jump " + chain + ";" }

func constantsOf(r nft.Rule) (c constants) {
	for _, x := range r.Exprs.List() {
		c += constants(x.Value())
		if to := x.Jump(); to != "" {
			c += constants(jump(to))
		}
		if x.Drops() {
			c += drops
		}
	}
	return c
}

// readSaved reads the rules that a tool of iptables shows.
func (t reference) readSaved(ctx context.Context, tool iptables.Tool) error {
	tables := []iptables.ChainID{{Table: tableNAT}, {Table: tableFilter}}
	builtIn := []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	sets, hidden, err := tool.Read(ctx, tables, func(line string) bool {
		chain, _, _ := strings.Cut(strings.TrimPrefix(line, "-A "), " ")
		return slices.Contains(builtIn, chain) || strings.HasPrefix(chain, "CNI-")
	})
	if err != nil {
		return fmt.Errorf("%s: list the rules: %w", tool.Name(), err)
	}
	for _, id := range hidden {
		t.hidden[place{tool: tool.Name(), table: id.Table}] = true
	}
	for _, set := range sets {
		for _, r := range set.Rules {
			t.add(place{tool: tool.Name(), table: set.Table, chain: r.Chain}, r.Words)
		}
	}
	return nil
}

// add adds a rule under each word by which one is looked for.
func (t reference) add(at place, w iptables.Words) {
	for _, word := range w {
		option, _, _ := strings.Cut(word, "=")
		switch option {
		case "-j", "-s", "-d", "--dport":
			at.word = word
			t.rules[at] = append(t.rules[at], w)
		}
	}
}

// about reports whether the rule names one of the addresses: from it, to it or translated
// to it. A network that contains the address does not count.
func about(w iptables.Words, addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		translated := "--to-destination=" + strings.TrimSuffix(netip.AddrPortFrom(a, 0).String(), "0")
		return w.Has(toHost("-s", a)) || w.Has(toHost("-d", a)) ||
			slices.ContainsFunc(w, func(word string) bool { return strings.HasPrefix(word, translated) })
	})
}
