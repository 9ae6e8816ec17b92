package iptform

import (
	"context"
	"errors"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// gist identifies a shared rule in the kernel's data, which needs no process as
// the tool does. It distinguishes the rule from all others that plugins make.
type gist struct {
	iptables.ChainID
	target  string // a chain, or RETURN, DROP, MARK, MASQUERADE
	comment string
	ifaces  []string
	mark    uint32
}

func gistOf(r desiredRule) gist {
	g := gist{ChainID: r.ChainID, mark: r.mark}
	for i := 0; i+1 < len(r.args); i++ {
		switch value := r.args[i+1]; r.args[i] {
		case "-j":
			g.target = value
		case "--comment":
			g.comment = value
			i++ // a value can look like an option
		case "-i", "-o":
			g.ifaces = append(g.ifaces, value)
		}
	}
	return g
}

// hasCommon reports whether all of w exists. It looks at the rules of single
// containers only if they precede a shared one.
func (x maker) hasCommon(ctx context.Context, w desired) (has bool, err error) {
	var gists []gist
	for _, r := range w.rules {
		gists = append(gists, gistOf(r))
	}
	if x.Legacy {
		return x.hasCommonLegacy(w, gists)
	}
	err = nft.UntilUnchanged(ctx, func() (err error) {
		has, err = x.hasCommonNFT(ctx, w, gists)
		return err
	})
	return has, err
}

func (x maker) hasCommonNFT(ctx context.Context, w desired, gists []gist) (bool, error) {
	found, err := x.Exist(ctx, w.ids())
	if errors.Is(err, nft.ErrNotSupported) || err == nil && slices.Contains(found, false) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for len(gists) > 0 {
		id := gists[0].ChainID
		var here, elsewhere []gist
		for _, g := range gists {
			if g.ChainID == id {
				here = append(here, g)
			} else {
				elsewhere = append(elsewhere, g)
			}
		}
		err := x.Rules(ctx, id, nil, func(r nft.Rule) error {
			s := iptables.NFTRuleOf(r)
			here = slices.DeleteFunc(here, func(g gist) bool { return g.isNFT(s) })
			if len(here) == 0 {
				return nft.ErrStop
			}
			return nil
		})
		if err != nil || len(here) > 0 {
			return false, err
		}
		gists = elsewhere
	}
	return true, nil
}

// isNFT reports whether a rule of the nf_tables variant matches g.
func (g gist) isNFT(s iptables.NFTRule) bool {
	if s.MatchComment != g.comment || slices.ContainsFunc(g.ifaces, func(name string) bool { return !s.HasInterface(name) }) {
		return false
	}
	switch g.target {
	case "MARK":
		return s.Marks(g.mark)
	case "MASQUERADE":
		return s.Masquerades(g.mark)
	case "DROP", "RETURN":
		return s.Ends(g.target)
	}
	return s.To == g.target
}

// hasCommonLegacy asks the kernel, which returns a whole table at once.
func (x maker) hasCommonLegacy(w desired, gists []gist) (bool, error) {
	for _, table := range []string{tableNAT, tableFilter} {
		part := w.of(table)
		if part.empty() {
			continue
		}
		has, err := x.HasLegacyTable(table)
		if err != nil || !has {
			return false, err
		}
		rules, chains, err := x.LegacyRules(table)
		if err != nil {
			return false, err
		}
		for _, c := range part.chains {
			if !chains[c.Chain] {
				return false, nil
			}
		}
		for _, g := range gists {
			if g.Table == table && !slices.ContainsFunc(rules, g.isLegacy) {
				return false, nil
			}
		}
	}
	return true, nil
}

// isLegacy reports whether a rule of the legacy variant matches g.
func (g gist) isLegacy(r iptables.LegacyRule) bool {
	return r.Chain == g.Chain && r.Target == g.target && r.Comment == g.comment && r.Mark == g.mark &&
		!slices.ContainsFunc(g.ifaces, func(name string) bool { return name != r.In && name != r.Out })
}
