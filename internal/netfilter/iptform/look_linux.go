package iptform

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// facts are known facts about a family's rules. Where the kernel can be asked, that
// takes no process. The cost does not grow with the number of containers, except
// for one look at the addresses in CNI-FORWARD.
type facts struct {
	chains map[iptables.ChainID]bool     // the wanted chains that exist
	jumps  map[iptables.ChainID][]string // the targets of existing jumps to shared chains, and to own ones
	bare   map[iptables.ChainID]bool     // the container's own chains that have no rule
	addrs  map[netip.Addr]struct{}       // the addresses that are in a rule of CNI-FORWARD
	marks  map[string]bool               // the marking rules that certainly exist, as text
	saved  map[string]bool               // of the legacy variant: all rules that can be wanted ones, as text
	legacy bool
}

// state is the state of a rule according to facts.
type state int

const (
	unknown state = iota // ask the tool
	absent
	present
)

// builtIn reports whether a chain is there whenever its table is.
func builtIn(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// state returns the state of a rule of w.
func (f facts) state(w desired, r desiredRule) state {
	if !builtIn(r.Chain) && !f.chains[r.ChainID] {
		return absent
	}
	for _, c := range w.chains {
		// No rule jumps to a chain that does not exist.
		if c.Table == r.Table && !f.chains[c.ChainID] && usesChain(r.args, c.Chain) {
			return absent
		}
	}
	if f.legacy && !r.conditional {
		// The tool cannot be asked: "ip6tables-legacy -C" does not distinguish
		// rules that differ only in a port.
		if f.saved[ruleText(r.ChainID, iptables.Canonical(r.args))] {
			return present
		}
		return absent
	}
	if r.addr.IsValid() {
		if _, found := f.addrs[r.addr]; !found {
			return absent
		}
		return unknown
	}
	jumps := slices.Contains(f.jumps[r.ChainID], r.target)
	switch {
	case f.legacy:
		return unknown
	case r.shared && r.target != "" && jumps:
		return present
	case r.target != "" && !jumps, f.bare[r.ChainID]:
		return absent
	}
	if f.marks[r.key()] {
		return present
	}
	return unknown
}

// usesChain reports whether the words of a rule have a jump to the chain.
func usesChain(args []string, chain string) bool {
	i := slices.Index(args, "-j")
	return i >= 0 && i+1 < len(args) && args[i+1] == chain
}

// sharedJumps are the chains with shared jumps in them, and those jumps' ends.
func (w desired) sharedJumps() map[iptables.ChainID][]string {
	jumps := make(map[iptables.ChainID][]string)
	for _, r := range w.rules {
		if r.shared && r.target != "" {
			jumps[r.ChainID] = append(jumps[r.ChainID], r.target)
		}
	}
	return jumps
}

// addrs are the addresses that rules are for.
func (w desired) addrs() []netip.Addr {
	var addrs []netip.Addr
	for _, r := range w.rules {
		if r.addr.IsValid() && !slices.Contains(addrs, r.addr) {
			addrs = append(addrs, r.addr)
		}
	}
	return addrs
}

// look finds the existing rules of w.
func (x maker) look(ctx context.Context, w desired) (facts, error) {
	f := facts{
		chains: make(map[iptables.ChainID]bool), jumps: make(map[iptables.ChainID][]string), addrs: make(map[netip.Addr]struct{}),
		marks: make(map[string]bool), bare: make(map[iptables.ChainID]bool), saved: make(map[string]bool), legacy: x.Legacy,
	}
	if x.Legacy {
		err := x.lookLegacy(ctx, w, &f)
		return f, err
	}
	return f, nft.UntilUnchanged(ctx, func() error { return x.lookNFT(ctx, w, f) })
}

// lookNFT is look once. The maps may have what an earlier try saw.
func (x maker) lookNFT(ctx context.Context, w desired, f facts) error {
	clear(f.chains)
	clear(f.jumps)
	clear(f.addrs)
	clear(f.marks)
	clear(f.bare)
	ids := w.ids()
	found, err := x.Exist(ctx, ids)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil // iptables will report it
	}
	if err != nil {
		return err
	}
	for i, id := range ids {
		if found[i] {
			f.chains[id] = true
		}
	}
	for id, targets := range w.sharedJumps() {
		if f.jumps[id], err = x.scanJumps(ctx, id, slices.DeleteFunc(slices.Clone(targets), func(target string) bool {
			return !f.chains[inTable(id.Table, target)]
		})); err != nil {
			return err
		}
	}
	if err := x.lookMarks(ctx, w, f); err != nil {
		return err
	}
	if err := x.lookOwn(ctx, w, f); err != nil {
		return err
	}
	addrs := w.addrs()
	if !f.chains[inTable(tableFilter, chainForward)] || len(addrs) == 0 {
		return nil
	}
	raw := make([][]byte, len(addrs))
	for i, a := range addrs {
		raw[i] = a.AsSlice()
	}
	return x.Rules(ctx, inTable(tableFilter, chainForward), raw, func(r nft.Rule) error {
		for i, a := range addrs {
			if bytes.Contains(r.Exprs, raw[i]) {
				f.addrs[a] = struct{}{}
			}
		}
		return nil
	})
}

// lookMarks looks for the rules that mark packets, and for those that masquerade them.
// The tool would list all chains.
func (x maker) lookMarks(ctx context.Context, w desired, f facts) error {
	for _, r := range w.rules {
		if r.mark == 0 || !f.chains[r.ChainID] {
			continue
		}
		err := x.Rules(ctx, r.ChainID, nil, func(rule nft.Rule) error {
			if s := iptables.NFTRuleOf(rule); s.MatchComment == markComment && s.Marks(r.mark) || s.Masquerades(r.mark) {
				f.marks[r.key()] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lookOwn looks for rules in existing chains of the container's own, and for jumps to
// them. If somebody has deleted the rules of all chains, the tool need not be asked.
func (x maker) lookOwn(ctx context.Context, w desired, f facts) error {
	for _, c := range w.chains {
		if c.shared || !f.chains[c.ChainID] {
			continue
		}
		bare := true
		err := x.Rules(ctx, c.ChainID, nil, func(nft.Rule) error {
			bare = false
			return nil
		})
		if err != nil {
			return err
		}
		f.bare[c.ChainID] = bare
		from := inTable(c.Table, entrance(c.Chain))
		err = x.Rules(ctx, from, [][]byte{iptables.ZeroTerminated(c.Chain)}, func(r nft.Rule) error {
			if r.Jump() == c.Chain && !slices.Contains(f.jumps[from], c.Chain) {
				f.jumps[from] = append(f.jumps[from], c.Chain)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scanJumps returns those of the targets that rules of the chain jump to. Most
// are at the chain's beginning, and it looks no further than to the last.
func (x maker) scanJumps(ctx context.Context, id iptables.ChainID, targets []string) (found []string, err error) {
	if len(targets) == 0 {
		return nil, nil
	}
	err = x.Rules(ctx, id, nil, func(r nft.Rule) error {
		if to := r.Jump(); slices.Contains(targets, to) && !slices.Contains(found, to) {
			found = append(found, to)
		}
		if len(found) == len(targets) {
			return nft.ErrStop
		}
		return nil
	})
	return found, err
}

// ids are the chains of w.
func (w desired) ids() []iptables.ChainID {
	ids := make([]iptables.ChainID, len(w.chains))
	for i, c := range w.chains {
		ids[i] = c.ChainID
	}
	return ids
}

// lookLegacy asks iptables-save, as the kernel has no other list of rules.
func (x maker) lookLegacy(ctx context.Context, w desired, f *facts) error {
	ids := w.ids()
	sets, err := loadSome(ctx, x.Tool, ids, w.concerns())
	if err != nil {
		return err
	}
	for _, set := range sets {
		for _, id := range ids {
			if id.Table == set.Table && set.Chains[id.Chain] {
				f.chains[id] = true
			}
		}
		for _, r := range set.Rules {
			f.saved[ruleText(inTable(set.Table, r.Chain), r.Args)] = true
		}
	}
	return nil
}

// concerns returns a function that reports whether a line of iptables-save can be one of
// the wanted rules. Parsing the rules of all containers would take longest.
func (w desired) concerns() func(line string) bool {
	words := make(map[string][]string) // by chain: one of which a wanted rule has; "": it may have none
	for _, r := range w.rules {
		word := r.target
		if r.addr.IsValid() {
			word = r.addr.String()
		}
		if !slices.Contains(words[r.Chain], word) {
			words[r.Chain] = append(words[r.Chain], word)
		}
	}
	return func(line string) bool {
		rest, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			return true
		}
		chain, spec, _ := strings.Cut(rest, " ")
		return slices.ContainsFunc(words[chain], func(word string) bool { return strings.Contains(spec, word) })
	}
}
