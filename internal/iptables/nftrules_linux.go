package iptables

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/nft"
)

// NFTRule is a rule that the nf_tables variant of iptables has made, as the kernel
// holds it.
type NFTRule struct {
	nft.Rule
	To           string // the chain that it jumps or goes to
	MatchComment string // of the match comment

	exprs []nft.Expr
}

// NFTRuleOf decodes a rule.
func NFTRuleOf(r nft.Rule) NFTRule {
	s := NFTRule{Rule: r, To: r.Jump(), exprs: r.Exprs.List()}
	for _, x := range s.exprs {
		if name, info := x.Extension(); name == "comment" && x.Name == "match" {
			text, _, _ := bytes.Cut(info, []byte{0})
			s.MatchComment = string(text)
		}
	}
	return s
}

// Object returns the rule as an object to delete.
func (s NFTRule) Object(t nft.Table) nft.Object {
	o := s.Rule.Object(t)
	o.Comment = s.MatchComment
	return o
}

// Comparison is "-s" or "-d" and an address.
func Comparison(a netip.Addr, source bool) nft.Exprs {
	family, e := nft.FamilyOf(a), nft.Exprs(nil)
	if source {
		return e.Source(family, nft.Reg(0)).Equal(a.AsSlice())
	}
	return e.Destination(family, nft.Reg(0)).Equal(a.AsSlice())
}

// Tracked is "-m conntrack --ctstate RELATED,ESTABLISHED": the third revision of
// the match, whose struct xt_conntrack_mtinfo3 selects states to compare.
func Tracked(e nft.Exprs) nft.Exprs {
	const size, flags, states = 168, 146, 150 // of the struct, and the offsets of its fields
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
	return e.Match("conntrack", 3, info)
}

// Marks reports whether the rule has a comment, sets the mark, and does nothing else.
func (s NFTRule) Marks(mark uint32) bool {
	target := nft.Exprs(nil).Target("MARK", 2, append(nft.Native32(mark), nft.Native32(mark)...))
	return len(s.exprs) == 2 && s.exprs[1].String() == target.String()
}

// Masquerades reports whether the rule masquerades packets with the mark, and does
// nothing else. Versions of iptables compare the mark with a match of its own, or since
// 1.8.9 as nft does.
func (s NFTRule) Masquerades(mark uint32) bool {
	if len(s.exprs) == 0 {
		return false
	}
	if target, _ := s.exprs[len(s.exprs)-1].Extension(); target != "MASQUERADE" {
		return false
	}
	value := nft.Native32(mark)
	if len(s.exprs) == 2 {
		name, info := s.exprs[0].Extension()
		// struct xt_mark_mtinfo1: mark, mask, invert
		return name == "mark" && s.exprs[0].Revision() == 1 && len(info) > 8 &&
			bytes.Equal(info[:4], value) && bytes.Equal(info[4:8], value) && info[8] == 0
	}
	return len(s.exprs) == 4 && s.exprs[0].Name == "meta" && bytes.Equal(s.exprs[1].Mask(), value) &&
		s.exprs[2].String() == nft.Exprs(nil).Equal(value).String()
}

// Ends reports whether a rule has the verdict DROP or RETURN.
func (s NFTRule) Ends(verdict string) bool {
	want := nft.Exprs(nil).Drop()
	if verdict == "RETURN" {
		want = nft.Exprs(nil).Return()
	}
	return slices.ContainsFunc(s.exprs, func(x nft.Expr) bool { return x.String() == want.String() })
}

// HasInterface reports whether the rule compares with the name of an interface.
func (s NFTRule) HasInterface(name string) bool {
	return slices.ContainsFunc(s.Values(), func(v []byte) bool { return bytes.HasPrefix(v, ZeroTerminated(name)) })
}

// ZeroTerminated returns the text as names are in rules of the kernel.
func ZeroTerminated(s string) []byte { return append([]byte(s), 0) }
