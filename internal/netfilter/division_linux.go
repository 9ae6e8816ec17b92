package netfilter

import (
	"slices"

	"github.com/embedcni/cni/internal/iptables"
)

// division says which attachments own the rules of a chain that attachments of
// one container share.
type division struct {
	own, kept desired // of the attachment, and of its siblings
	unknown   bool    // a sibling may have more
}

// keeps reports whether siblings have rules in the chain.
func (d division) keeps(chain string) bool {
	return slices.ContainsFunc(d.kept.chains, func(c desiredChain) bool { return c.Chain == chain })
}

// has reports whether a rule of iptables-save is one of w. Conditions of a
// configuration are not recognized.
func (w desired) has(table string, r iptables.Rule) bool {
	return slices.ContainsFunc(w.rules, func(want desiredRule) bool {
		return want.Table == table && want.Chain == r.Chain && r.Is(iptables.Canonical(want.args)...)
	})
}
