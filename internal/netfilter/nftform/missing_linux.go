package nftform

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// expected are the rules that an attachment should have, each once.
type expected struct {
	base  base
	parts []fwrules.Part
	rules []wantedRule
	fixed int     // the rules from here on are for all containers
	of    [][]int // by part: its rules, and those that lead to them
}

// expectedOf computes the rules.
func expectedOf(r fwrules.Rules) (e expected, err error) {
	if _, err = rulesOf(r); err != nil {
		return e, err
	}
	if e.base, err = baseOf(r); err != nil {
		return e, err
	}
	e.parts = r.Parts()
	e.of = make([][]int, len(e.parts))
	shared := make(map[string]int)
	add := func(part int, rule wantedRule, once bool) {
		key := fmt.Sprint(rule.table, rule.chain, rule.comment, string(rule.exprs))
		i, found := shared[key]
		if !once || !found {
			i = len(e.rules)
			e.rules = append(e.rules, rule)
			shared[key] = i
		}
		e.of[part] = append(e.of[part], i)
	}
	tables := make([][]nft.Table, len(e.parts))
	for i, part := range e.parts {
		rules, err := rulesOf(part.Rules)
		if err != nil {
			return e, err
		}
		for _, rule := range rules {
			// The ports of an attachment share the rules for their replies.
			add(i, rule, rule.chain == chainMasquerading)
		}
		tables[i] = tablesOf(rules)
	}
	e.fixed = len(e.rules)
	for i := range e.parts {
		for _, t := range tables[i] {
			for _, rule := range e.base.fixed(t) {
				add(i, rule, true)
			}
		}
	}
	return e, nil
}

// place is where a rule is looked for.
type place struct {
	table          nft.Table
	chain, comment string
}

// sight is the rules of some tables at one time: all, or those with some comments.
type sight map[place][]foundRule

// find reports which of the rules exist. A rule that is found once does not stand for
// two. It assigns rules with most constants first, each to the one with the fewest
// others, since a rule for all addresses of the host is contained in one for a single
// address.
func (e expected) find(s sight) []bool {
	order := make([]int, len(e.rules))
	size := make([]int, len(e.rules))
	for i, rule := range e.rules {
		order[i], size[i] = i, len(bytes.Join(rule.values, nil))
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(size[j], size[i]) })
	there := make([]bool, len(e.rules))
	places := make(map[place]*candidates)
	for _, i := range order {
		rule := e.rules[i]
		at := place{rule.table, rule.chain, rule.comment}
		if places[at] == nil {
			places[at] = newCandidates(s[at])
		}
		there[i] = places[at].take(rule)
	}
	return there
}

// candidates are the rules of a place that no wanted rule has been found in yet.
type candidates struct {
	rules []foundRule
	taken []bool
	with  map[pair][]int // by two bytes of their constants; nil: they are few
}

type pair [2]byte

// fewCandidates are compared one by one. A container with many ports has many rules.
const fewCandidates = 32

func newCandidates(rules []foundRule) *candidates {
	c := &candidates{rules: rules, taken: make([]bool, len(rules))}
	if len(rules) <= fewCandidates {
		return c
	}
	c.with = make(map[pair][]int)
	for i, r := range rules {
		for j := range len(r.constants) - 1 {
			p := pair(r.constants[j:])
			if with := c.with[p]; len(with) == 0 || with[len(with)-1] != i {
				c.with[p] = append(with, i)
			}
		}
	}
	return c
}

// take takes the rule with the fewest constants that is the wanted one.
func (c *candidates) take(rule wantedRule) bool {
	best := -1
	try := func(i int) {
		if !c.taken[i] && (best < 0 || len(c.rules[i].constants) < len(c.rules[best].constants)) && rule.is(c.rules[i]) {
			best = i
		}
	}
	if few, ok := c.rarest(rule); ok {
		for _, i := range few {
			try(i)
		}
	} else {
		for i := range c.rules {
			try(i)
		}
	}
	if best >= 0 {
		c.taken[best] = true
	}
	return best >= 0
}

// rarest returns the rules that have two bytes of the wanted one that fewest others have:
// usually those of its port. ok is false if it has none.
func (c *candidates) rarest(rule wantedRule) (few []int, ok bool) {
	if c.with == nil {
		return nil, false
	}
	for _, v := range rule.values {
		for i := range len(v) - 1 {
			if with := c.with[pair(v[i:])]; !ok || len(with) < len(few) {
				few, ok = with, true
			}
		}
	}
	return few, ok
}

// inPlace returns the rule that leads to the host ports of a table under other
// conditions than the wanted one. The conditions are the table's, so that of the last
// ADD stay.
func (s sight) inPlace(rule wantedRule) string {
	if rule.chain != "prerouting" && rule.chain != "output" {
		return ""
	}
	for _, found := range s[place{rule.table, rule.chain, ""}] {
		if bytes.HasSuffix(found.constants, []byte(chainAllHostports)) {
			return fmt.Sprintf("rule %v %s with other conditions", rule.table, rule.chain)
		}
	}
	return ""
}

// missing returns the parts of which a rule is missing.
func (e expected) missing(ctx context.Context, s sight) (all []fwrules.Missing, err error) {
	there := e.find(s)
	for i, part := range e.parts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m := fwrules.Missing{Backend: fwrules.NFTables, Rules: part.Rules, Object: part.Object}
		for _, j := range e.of[i] {
			if there[j] {
				continue
			}
			rule := e.rules[j]
			if m.Err == nil {
				m.Err = fwrules.AsMissing(fmt.Errorf("nftables: rule %v %s is missing, with comment %q and values %x",
					rule.table, rule.chain, rule.comment, rule.values))
			}
			m.Found = cmp.Or(m.Found, s.inPlace(rule))
		}
		if m.Err != nil {
			all = append(all, m)
		}
	}
	return all, nil
}

// look reads the rules of the tables, with one of the comments or any, and returns a
// generation from before. It fails with [nft.ErrChanged] unless all is of that
// generation; then the sight may lack something.
func look(k ruleTable, tables []nft.Table, wanted func(comment string) bool) (sight, uint32, error) {
	before, err := k.Generation()
	if err != nil {
		return nil, 0, wrap(err)
	}
	s := make(sight)
	var changed error
	for _, t := range tables {
		err := k.Rules(t, "", nil, func(r nft.Rule) error {
			if wanted(r.Comment) {
				at := place{t, r.Chain, r.Comment}
				s[at] = append(s[at], found(r))
			}
			return nil
		})
		if changed = errors.Join(changed, err); err != nil && !errors.Is(err, nft.ErrChanged) {
			return nil, 0, wrap(err)
		}
	}
	after := before
	if changed == nil {
		after, changed = k.Generation()
	}
	if changed == nil && after != before {
		changed = nft.ErrChanged
	}
	return s, before, wrap(changed)
}

// Tables are the rules of the plugins' tables at one time. They are safe for concurrent
// use.
type Tables struct {
	sight  sight
	Steady bool // all of it is of one generation; else something may be missing from it
}

// Read reads the tables. It reads them again if they change meanwhile, a few times.
func (f Form) Read(ctx context.Context) (t *Tables, err error) {
	tables := []nft.Table{
		{Family: nft.FamilyInet, Name: tableMasquerade},
		{Family: nft.FamilyIPv4, Name: tableHostport}, {Family: nft.FamilyIPv6, Name: tableHostport}, spoofTable(),
	}
	err = f.onRules(ctx, func(k ruleTable) error {
		return nft.Repeat(ctx, nft.MostReads, func() error {
			s, _, err := look(k, tables, func(string) bool { return true })
			t = &Tables{s, err == nil}
			return err
		})
	})
	if errors.Is(err, nft.ErrChanged) {
		err = nil
	}
	return t, err
}

// MissingIn is Missing in tables that were read before.
func (f Form) MissingIn(ctx context.Context, t *Tables, r fwrules.Rules) ([]fwrules.Missing, error) {
	e, err := expectedOf(r)
	if err != nil {
		return nil, err
	}
	return e.missing(ctx, t.sight)
}

// lookFor reads the rules that can be the expected ones of attachments.
func lookFor(k ruleTable, all []expected) (sight, uint32, error) {
	comments := make(map[string]bool)
	var tables []nft.Table
	for _, e := range all {
		for _, rule := range e.rules {
			comments[rule.comment] = true
		}
		for _, t := range tablesOf(e.rules) {
			if !slices.Contains(tables, t) {
				tables = append(tables, t)
			}
		}
	}
	return look(k, tables, func(comment string) bool { return comments[comment] })
}

// Missing returns the parts of the rules that do not exist. Of a rule to which no rule
// leads, the part is missing too.
func (f Form) Missing(ctx context.Context, r fwrules.Rules) (all []fwrules.Missing, err error) {
	e, err := expectedOf(r)
	if err != nil || len(e.rules) == 0 {
		return nil, err
	}
	err = f.onRules(ctx, func(k ruleTable) error {
		return nft.UntilUnchanged(ctx, func() error {
			s, _, err := lookFor(k, []expected{e})
			if err == nil {
				all, err = e.missing(ctx, s)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Restore adds the missing rules of attachments, and the missing tables, chains and rules
// that they need, in one transaction. Unlike Add it lists the tables before, doubles no
// rule, and leaves the rules of others in the same chains as they are.
func (f Form) Restore(ctx context.Context, all []fwrules.Rules) error {
	var wanted []expected
	for _, r := range all {
		e, err := expectedOf(r)
		if err != nil {
			return err
		}
		if len(e.rules) > 0 {
			wanted = append(wanted, e)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			s, generation, err := lookFor(c, wanted)
			if err != nil {
				return err
			}
			msgs, err := toAdd(wanted, s)
			if err != nil || len(msgs) == 0 {
				return err
			}
			return wrap(c.Transact(msgs, &generation))
		})
	})
}

// toAdd returns the messages that make the missing rules of attachments.
func toAdd(all []expected, s sight) (msgs []nft.Message, err error) {
	made := make(map[nft.Table]bool) // by table: with the chain that only some need
	for _, e := range all {
		some, err := e.toAdd(s, made)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, some...)
	}
	return msgs, nil
}

// toAdd returns the messages that make the missing rules, adds these to the sight, and
// their tables to those that are made.
func (e expected) toAdd(s sight, made map[nft.Table]bool) (msgs []nft.Message, err error) {
	var first, last []nft.Message
	var lacking []wantedRule
	for i, there := range e.find(s) {
		if there {
			continue
		}
		rule := e.rules[i]
		if other := s.inPlace(rule); other != "" {
			return nil, fmt.Errorf("nftables: %w: there is %s", fwrules.ErrInPlace, other)
		}
		lacking = append(lacking, rule)
		if i >= e.fixed && e.base.leads(rule) {
			// They go in reverse, each before the others.
			first = append(first, nft.InsertRule(rule.table, rule.chain, rule.exprs, rule.comment))
			continue
		}
		last = append(last, nft.NewRule(rule.table, rule.chain, rule.exprs, rule.comment))
	}
	for _, t := range tablesOf(lacking) {
		if whole, is := made[t]; !is || e.base.snat && !whole {
			msgs = append(msgs, e.base.objects(t)...)
			made[t] = e.base.snat
		}
	}
	for _, rule := range lacking {
		at := place{rule.table, rule.chain, rule.comment}
		s[at] = append(s[at], found(nft.Rule{Chain: rule.chain, Comment: rule.comment, Exprs: rule.exprs}))
	}
	slices.Reverse(first)
	return slices.Concat(msgs, first, last), nil
}
