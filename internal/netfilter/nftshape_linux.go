package netfilter

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/nft"
)

// shape is a rule that the nf_tables variant of iptables has made.
type shape struct {
	nft.Rule
	exprs   []nft.Expr
	jump    string // the chain that it jumps or goes to
	comment string // of the match comment
}

func shapeOf(r nft.Rule) shape {
	s := shape{Rule: r, exprs: r.Exprs.List(), jump: r.Jump()}
	for _, x := range s.exprs {
		if name, info := x.Extension(); name == "comment" && x.Name == "match" {
			text, _, _ := bytes.Cut(info, []byte{0})
			s.comment = string(text)
		}
	}
	return s
}

// object returns the rule as an object to delete.
func (s shape) object(t nft.Table) nft.Object {
	o := s.Object(t)
	o.Comment = s.comment
	return o
}

// comparison is "-s" or "-d" and an address.
func comparison(a netip.Addr, source bool) nft.Exprs {
	family, e := nft.FamilyOf(a), nft.Exprs(nil)
	if source {
		return e.Source(family, nft.Reg(0)).Equal(a.AsSlice())
	}
	return e.Destination(family, nft.Reg(0)).Equal(a.AsSlice())
}

// tracked is "-m conntrack --ctstate RELATED,ESTABLISHED": the third revision of
// the match, whose struct xt_conntrack_mtinfo3 selects states to compare.
func tracked(e nft.Exprs) nft.Exprs {
	const size, flags, states = 168, 146, 150 // of the struct, and the offsets of its fields
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
	return e.Match("conntrack", 3, info)
}

// marks reports whether all that the rule does is to mark, as portmap has it.
func (s shape) marks(mark uint32) bool {
	target := nft.Exprs(nil).Target("MARK", 2, append(nft.Native32(mark), nft.Native32(mark)...))
	return s.comment == markComment && len(s.exprs) == 2 && s.exprs[1].String() == target.String()
}

// masquerades reports whether all that the rule does is to masquerade packets
// with the mark.
func (s shape) masquerades(mark uint32) bool {
	value := nft.Native32(mark)
	if len(s.exprs) != 4 || s.exprs[0].Name != "meta" || !bytes.Equal(s.exprs[1].Mask(), value) {
		return false
	}
	target, _ := s.exprs[3].Extension()
	return s.exprs[2].String() == nft.Exprs(nil).Equal(value).String() && target == "MASQUERADE"
}

// ends reports whether a rule has the verdict DROP or RETURN.
func (s shape) ends(verdict string) bool {
	want := nft.Exprs(nil).Drop()
	if verdict == "RETURN" {
		want = nft.Exprs(nil).Return()
	}
	return slices.ContainsFunc(s.exprs, func(x nft.Expr) bool { return x.String() == want.String() })
}

// hasInterface reports whether the rule compares with the name of an interface.
func (s shape) hasInterface(name string) bool {
	return slices.ContainsFunc(s.Values(), func(v []byte) bool { return bytes.HasPrefix(v, zeroTerminated(name)) })
}

func zeroTerminated(s string) []byte { return append([]byte(s), 0) }
