package iptables

import (
	"bytes"

	"github.com/embedcni/cni/internal/nft"
)

// NFTRule is a rule that the nf_tables variant of iptables has made, as the kernel
// holds it.
type NFTRule struct {
	To           string // the chain that it jumps or goes to
	MatchComment string // of the match comment
}

// NFTRuleOf decodes a rule.
func NFTRuleOf(r nft.Rule) NFTRule {
	s := NFTRule{To: r.Jump()}
	for _, x := range r.Exprs.List() {
		if name, info := x.Extension(); name == "comment" && x.Name == "match" {
			text, _, _ := bytes.Cut(info, []byte{0})
			s.MatchComment = string(text)
		}
	}
	return s
}
