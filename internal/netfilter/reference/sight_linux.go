package reference

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Form finds rules in both variants of iptables, and in nftables.
type Form struct {
	Sockets nft.Sockets
	Held    *os.File // open in all processes that it starts; nil: none is
}

// in runs fn on a thread in the namespace, where processes are started.
func (f Form) in(fn func() error) error { return nft.In(f.Sockets.NS, fn) }

// Find returns the rules of the target that exist. With an error, it returns all others
// that it found.
func (f Form) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	err = f.in(func() error {
		var errs []error
		for _, tool := range iptables.Variants(f.Sockets, f.Held) {
			commands, err := find(ctx, tool, t)
			errs = append(errs, err)
			if len(commands) > 0 {
				all = append(all, saved{f, tool, t, commands})
			}
		}
		return errors.Join(errs...)
	})
	more, moreErr := f.findNFTables(ctx, t)
	return append(all, more...), errors.Join(err, moreErr)
}

// Sight is the plugins' rules at one time, in all forms. It is safe for concurrent use.
type Sight struct {
	rules  map[place][]rule
	hidden map[place]bool // tables that a tool may not show
	Steady bool           // nothing has changed meanwhile; else something may be missing
}

// place is where a rule is looked for: a chain, and a word of the rule, which for nftables
// is its comment.
type place struct{ tool, table, chain, word string }

// rule is a rule as far as it identifies itself: versions of the tools write the rest
// differently.
type rule interface {
	// has reports whether the rule has the values.
	has(values ...string) bool
}

// words are those of a rule of iptables, without comments: "-s=10.1.0.2/32",
// "--dport=8080", "!-i=cni0", and "-d=any" if it names no destination.
type words []string

func (w words) has(values ...string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(w, v) })
}

// constants are the values that a rule of nftables compares with and loads and the chains
// that it jumps to, one after the other, which has takes in their order.
type constants string

func (c constants) has(values ...string) bool {
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

// Read reads the rules. It reads them again if they change meanwhile, a few times.
func (f Form) Read(ctx context.Context) (*Sight, error) {
	s := &Sight{rules: make(map[place][]rule), hidden: make(map[place]bool), Steady: true}
	if err := f.readTables(ctx, s); err != nil {
		return nil, err
	}
	return s, f.in(func() error {
		for _, t := range iptables.Variants(f.Sockets, f.Held) {
			if err := s.readSaved(ctx, t); err != nil {
				return err
			}
		}
		return nil
	})
}

// readTables reads the rules in nftables.
func (f Form) readTables(ctx context.Context, s *Sight) error {
	err := f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.Repeat(ctx, nft.MostReads, func() error {
			clear(s.rules)
			return c.InOneGeneration(func() error {
				var errs []error
				for _, t := range []nft.Table{masqueradeTable(), hostportTable(nft.FamilyIPv4), hostportTable(nft.FamilyIPv6), spoofTable()} {
					errs = append(errs, c.Rules(t, "", nil, func(r nft.Rule) error {
						at := place{"", t.String(), r.Chain, r.Comment}
						s.rules[at] = append(s.rules[at], constantsOf(r))
						return nil
					}))
				}
				return errors.Join(errs...)
			})
		})
	})
	if errors.Is(err, nft.ErrChanged) {
		s.Steady, err = false, nil
	}
	if err != nil && !errors.Is(err, nft.ErrNotSupported) {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// drops stands for the verdict of a rule.
const drops = "drop"

func constantsOf(r nft.Rule) (c constants) {
	for _, x := range r.Exprs.List() {
		if c += constants(x.Value()) + constants(x.Jump()); x.Drops() {
			c += drops
		}
	}
	return c
}

// readSaved reads the rules that a tool of iptables shows.
func (s *Sight) readSaved(ctx context.Context, t iptables.Tool) error {
	tables := []string{tableNAT, tableFilter}
	var out string
	var hidden []string
	err := nft.Repeat(ctx, nft.MostReads, func() (err error) {
		out, hidden, err = t.SaveTables(ctx, tables)
		return err
	})
	if errors.Is(err, nft.ErrChanged) {
		s.Steady, err = false, nil
	}
	if err != nil {
		return fmt.Errorf("%s: list the rules: %w", t.Name(), err)
	}
	for _, table := range hidden {
		s.hidden[place{tool: t.Name(), table: table}] = true
	}
	sets, err := iptables.ParseSome(out, func(line string) bool {
		chain, _, _ := strings.Cut(strings.TrimPrefix(line, "-A "), " ")
		return builtIn(chain) || strings.HasPrefix(chain, "CNI-")
	})
	for _, set := range sets {
		for _, r := range set.Rules {
			if slices.Contains(tables, set.Table) {
				s.add(place{tool: t.Name(), table: set.Table, chain: r.Chain}, wordsOf(r))
			}
		}
	}
	return err
}

// add adds a rule under each word by which one is looked for.
func (s *Sight) add(at place, w words) {
	for _, word := range w {
		option, _, _ := strings.Cut(word, "=")
		switch option {
		case "-j", "-s", "-d", "--dport":
			at.word = word
			s.rules[at] = append(s.rules[at], w)
		}
	}
}

// builtIn reports whether a chain is there whenever its table is.
func builtIn(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// notTranslated is a word of each rule that does not translate the destination.
const notTranslated = "-j!=DNAT"

// wordsOf returns the words of a rule.
func wordsOf(r iptables.Rule) (w words) {
	not, ends := "", map[string]bool{}
	for i, arg := range r.Args {
		if i+1 == len(r.Args) || i > 0 && r.Args[i-1] == "--comment" {
			continue // a comment can look like an option
		}
		value := r.Args[i+1]
		switch {
		case arg == "!":
			not = "!"
			continue
		case arg == "--comment" || !strings.HasPrefix(arg, "-"):
		case arg == "-g":
			w = append(w, "-j="+value)
		case arg == "--dports":
			for port := range strings.SplitSeq(value, ",") {
				w = append(w, not+"--dport="+port)
			}
		default:
			ends[arg] = true
			w = append(w, not+arg+"="+value)
		}
		not = ""
	}
	for _, end := range []string{"-s", "-d"} {
		if !ends[end] {
			w = append(w, end+"=any")
		}
	}
	if !w.has("-j=DNAT") {
		w = append(w, notTranslated)
	}
	return w
}

// about reports whether the rule names one of the addresses: from it, to it or translated
// to it. A network that contains the address does not count.
func (w words) about(addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		translated := "--to-destination=" + strings.TrimSuffix(netip.AddrPortFrom(a, 0).String(), "0")
		return w.has(toHost("-s", a)) || w.has(toHost("-d", a)) ||
			slices.ContainsFunc(w, func(word string) bool { return strings.HasPrefix(word, translated) })
	})
}
