package nftrules

import (
	"bytes"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// Rule is a rule of iptables: the words that "iptables -t Table -A Chain" takes after
// the chain.
type Rule struct {
	iptables.ChainID
	Words []string
}

// State is the answer to the question whether the kernel has a rule.
type State int

const (
	Unknown State = iota // only the tool can say: a rule in the chain may be the one
	Absent
	Present
)

// Look returns the states of the rules, in order. It lists each chain once. If rules
// change while the kernel lists them, the error is [nft.ErrChanged].
func Look(c *nft.Conn, family uint8, rules []Rule) ([]State, error) {
	found, err := find(c, family, rules)
	states := make([]State, len(rules))
	for i, f := range found {
		switch {
		case len(f.objects) > 0:
			states[i] = Present
		case !f.doubt:
			states[i] = Absent
		}
	}
	return states, err
}

// found is what a chain has of a rule.
type found struct {
	objects []nft.Object // the rule, as often as it is there
	doubt   bool         // a rule of the chain is of an unknown form, and may be it
}

// wanted is a rule that is looked for.
type wanted struct {
	rule
	known bool
	mark  []byte // bytes that the rule has in every form, and few others have; nil: it has none
	found *found
}

// find looks for the rules in the kernel.
func find(c *nft.Conn, family uint8, rules []Rule) ([]found, error) {
	all := make([]found, len(rules))
	byChain := make(map[iptables.ChainID][]wanted)
	var chains []iptables.ChainID
	for i, r := range rules {
		w := wanted{found: &all[i]}
		parsed, err := parse(family, r.Words)
		if w.rule, w.known = parsed, err == nil; w.known {
			w.mark = parsed.mark()
		} else {
			w.found.doubt = true
		}
		if !slices.Contains(chains, r.ChainID) {
			chains = append(chains, r.ChainID)
		}
		byChain[r.ChainID] = append(byChain[r.ChainID], w)
	}
	for _, id := range chains {
		if err := findIn(c, family, id, byChain[id]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// findIn looks for rules in one chain, which may have thousands that are looked for. A
// chain that does not exist has none.
func findIn(c *nft.Conn, family uint8, id iptables.ChainID, all []wanted) error {
	all = slices.DeleteFunc(all, func(w wanted) bool { return !w.known })
	if len(all) == 0 {
		return nil
	}
	table := nft.Table{Family: family, Name: id.Table}
	same := make(map[ruleKey][]wanted)
	doubtful := make(map[string][]wanted) // by mark: for which no rule has been in doubt yet
	for _, w := range all {
		same[w.key()] = append(same[w.key()], w)
		doubtful[string(w.mark)] = append(doubtful[string(w.mark)], w)
	}
	return c.Rules(table, id.Chain, marksOf(doubtful), func(listed nft.Rule) error {
		have, err := decode(family, listed.Exprs)
		if err == nil && listed.Comment == "" { // iptables takes a comment for a match of it
			for _, w := range same[have.key()] {
				w.found.objects = append(w.found.objects, listed.Object(table))
			}
			return nil
		}
		for mark, of := range doubtful {
			if bytes.Contains(listed.Exprs, []byte(mark)) {
				for _, w := range of {
					w.found.doubt = true
				}
				delete(doubtful, mark)
			}
		}
		return nil
	})
}

// marksOf returns the marks of rules, or nil if a rule has none.
func marksOf(all map[string][]wanted) (marks [][]byte) {
	for mark := range all {
		if mark == "" {
			return nil
		}
		marks = append(marks, []byte(mark))
	}
	return marks
}

// mark returns bytes that the kernel's listing of the rule has in any form: the chain
// of a jump, or an address.
func (r rule) mark() []byte {
	switch {
	case r.verdict.chain != "":
		return iptables.ZeroTerminated(r.verdict.chain)
	case r.src.IsValid() && r.src.IsSingleIP():
		return r.src.Addr().AsSlice()
	case r.dst.IsValid() && r.dst.IsSingleIP():
		return r.dst.Addr().AsSlice()
	}
	return nil
}
