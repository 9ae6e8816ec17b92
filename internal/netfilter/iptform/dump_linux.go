package iptform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Dumps are the rules of iptables of both families and variants, each read once when
// it is first needed. They are safe for concurrent use.
type Dumps struct {
	form  Form
	mu    sync.Mutex
	plain map[bool]maker   // by family, v6 or not: the system's
	read  map[string]*dump // by the name of the tool
}

// Dumps returns the dumps of the namespace, of which none is read yet.
func (f Form) Dumps() *Dumps {
	return &Dumps{form: f, plain: make(map[bool]maker), read: make(map[string]*dump)}
}

// MissingIn is Missing in dumps. It asks the kernel again about a rule that a dump has
// in a form of which it is not sure that it is the same.
func (f Form) MissingIn(ctx context.Context, d *Dumps, r fwrules.Rules) ([]fwrules.Missing, error) {
	return missingParts(ctx, r, func(v6 bool) (source, error) {
		x, noted, err := f.notedMaker(v6)
		if err == nil && !noted {
			x, err = d.system(ctx, v6)
		}
		if err != nil {
			return nil, err
		}
		return d.of(ctx, x)
	})
}

// system returns the variant that the system has under the name iptables.
func (d *Dumps) system(ctx context.Context, v6 bool) (maker, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x, known := d.plain[v6]; known {
		return x, nil
	}
	x := d.form.maker(v6, false)
	err := x.Detect(ctx)
	if err == nil {
		d.plain[v6] = x
	}
	return x, err
}

// of returns the dump of a variant. If it fails, another call tries again.
func (d *Dumps) of(ctx context.Context, x maker) (*dump, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if read := d.read[x.Name()]; read != nil {
		return read, nil
	}
	var read *dump
	x.kept = d.form.Kept
	err := d.form.in(func() (err error) {
		read, err = readDump(ctx, x)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: list the rules: %w", x.Name(), err)
	}
	read.in = d.form.in
	d.read[x.Name()] = read
	return read, nil
}

// dump is the rules of one family and variant at one time.
type dump struct {
	maker
	in     func(func() error) error
	chains map[iptables.ChainID]bool
	hidden []string // tables that the tool may not show
	steady bool     // nothing has changed meanwhile; else something may be missing
	// generation is that of the rules, if steady; 0 if it is not known.
	generation uint32

	exact   map[string]bool                      // the rules, by text
	inside  map[iptables.ChainID][]iptables.Rule // of chains that are not built in, without --dport
	about   map[chainWord][]iptables.Rule
	targets map[chainWord]bool
}

// chainWord is a word of a rule in a chain: its target, an address, or a port.
type chainWord struct {
	iptables.ChainID
	word string
}

// readDump reads the rules, unless those that are kept are still there.
func readDump(ctx context.Context, x maker) (*dump, error) {
	if d := x.kept.current(ctx, x); d != nil {
		return d, nil
	}
	tables := []string{tableNAT, tableFilter}
	var out string
	var hidden []string
	var generation uint32
	err := nft.Repeat(ctx, nft.MostReads, func() (err error) {
		out, hidden, generation, err = x.SaveTables(ctx, tables)
		return err
	})
	steady := err == nil
	if err != nil && !errors.Is(err, nft.ErrChanged) {
		return nil, err
	}
	d, err := parseDump(out)
	if err != nil {
		return nil, err
	}
	d.maker, d.hidden, d.steady, d.generation = x, hidden, steady, generation
	x.kept.keep(d)
	return d, nil
}

// parseDump reads the output of iptables-save. It passes over rules of chains that the
// plugins do not make.
func parseDump(out string) (*dump, error) {
	d := &dump{
		chains: make(map[iptables.ChainID]bool), exact: make(map[string]bool), inside: make(map[iptables.ChainID][]iptables.Rule),
		about: make(map[chainWord][]iptables.Rule), targets: make(map[chainWord]bool),
	}
	table := ""
	for rest := out; rest != ""; {
		var line string
		line, rest = iptables.CutLine(rest)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case table != tableNAT && table != tableFilter:
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			d.chains[inTable(table, name)] = true
		case strings.HasPrefix(line, "-A "):
			chain, _, _ := strings.Cut(line[len("-A "):], " ")
			if !builtIn(chain) && !strings.HasPrefix(chain, "CNI-") {
				continue
			}
			r, err := iptables.ParseRule(line)
			if err != nil {
				return nil, err
			}
			d.add(inTable(table, chain), r)
		}
	}
	return d, nil
}

func (d *dump) add(id iptables.ChainID, r iptables.Rule) {
	d.exact[ruleText(id, r.Args)] = true
	if !builtIn(id.Chain) && !slices.Contains(r.Args, "--dport") {
		d.inside[id] = append(d.inside[id], r)
	}
	for i := 0; i+1 < len(r.Args); i++ {
		switch value := r.Args[i+1]; r.Args[i] {
		case "-j", "-g":
			d.targets[chainWord{id, value}] = true
			d.about[chainWord{id, value}] = append(d.about[chainWord{id, value}], r)
		case "-s", "-d", "--dport":
			d.about[chainWord{id, value}] = append(d.about[chainWord{id, value}], r)
		case "--comment":
			i++ // a value can look like an option
		}
	}
}

// ruleText identifies a rule.
func ruleText(id iptables.ChainID, words []string) string {
	return id.Table + "\x00" + id.Chain + "\x00" + strings.Join(words, "\x00")
}

// compare is that of the maker, but asks it only if a rule is in doubt.
func (d *dump) compare(ctx context.Context, w desired) (map[iptables.ChainID]bool, map[string]state, error) {
	chains := make(map[iptables.ChainID]bool)
	for _, c := range w.chains {
		chains[c.ChainID] = d.chains[c.ChainID]
	}
	states := make(map[string]state)
	for _, r := range w.rules {
		s := d.state(w, r)
		if s == unknown || s == absent && (!d.steady || slices.Contains(d.hidden, r.Table)) {
			return d.ask(ctx, w)
		}
		states[r.key()] = s
	}
	return chains, states, nil
}

func (d *dump) ask(ctx context.Context, w desired) (chains map[iptables.ChainID]bool, states map[string]state, err error) {
	err = d.in(func() error {
		chains, states, err = d.maker.compare(ctx, w)
		return err
	})
	return chains, states, err
}

// state is that of facts, from the dump.
func (d *dump) state(w desired, r desiredRule) state {
	if !builtIn(r.Chain) && !d.chains[r.ChainID] {
		return absent
	}
	for _, c := range w.chains {
		if c.Table == r.Table && !d.chains[c.ChainID] && usesChain(r.args, c.Chain) {
			return absent
		}
	}
	words := iptables.Canonical(r.args)
	shared := r.shared && r.target != "" && !d.Legacy // a jump is enough, as for the maker
	if d.exact[ruleText(r.ChainID, words)] || shared && d.targets[chainWord{r.ChainID, r.target}] {
		return present
	}
	if shared || d.Legacy && !r.conditional {
		return absent
	}
	if slices.ContainsFunc(d.candidates(r), func(c iptables.Rule) bool { return resembles(c, words) }) {
		return unknown
	}
	return absent
}

// candidates returns the rules of r's chain that can be r.
func (d *dump) candidates(r desiredRule) []iptables.Rule {
	switch {
	case r.addr.IsValid():
		address := netip.PrefixFrom(r.addr, r.addr.BitLen()).String()
		return d.about[chainWord{r.ChainID, address}]
	case r.target != "":
		return d.about[chainWord{r.ChainID, r.target}]
	}
	if i := slices.Index(r.args, "--dport"); i >= 0 { // the chain has rules for many ports
		return slices.Concat(d.about[chainWord{r.ChainID, r.args[i+1]}], d.inside[r.ChainID])
	}
	return d.inside[r.ChainID]
}

// resembles reports whether a rule contains all values that identify the wanted one,
// however the tool's version writes the rest.
func resembles(r iptables.Rule, words []string) bool {
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "-j", "-s", "-d", "-i", "-o", "--comment", "--dport", "--to-destination":
			if i++; !slices.Contains(r.Args, words[i]) {
				return false
			}
		}
	}
	return true
}
