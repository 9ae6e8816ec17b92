package netfilter

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// shape is a rule of nf_tables in words, but for its counter: one for each
// expression, which are compared whole.
type shape struct {
	chain   string
	handle  uint64
	words   []string
	jump    string // the chain that it jumps or goes to
	comment string // of the match comment
}

// text is what the rule does.
func (s shape) text() string { return strings.Join(s.words, ", ") }

// decodeShape reads a message about a rule.
func decodeShape(data []byte) (shape, error) {
	var s shape
	ad, err := attributes(data)
	if err != nil {
		return s, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			s.chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			s.handle = ad.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(s.expression)
				}
				return nil
			})
		}
	}
	return s, ad.Err()
}

func (s *shape) expression(ad *netlink.AttributeDecoder) error {
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data := ad.Bytes()
			if name == "counter" {
				return nil
			}
			s.words = append(s.words, word(name, data))
			switch name {
			case "match":
				return s.match(data)
			case "immediate":
				return s.verdict(data)
			}
		}
	}
	return nil
}

// word is an expression in words.
func word(name string, data []byte) string { return name + " " + hex.EncodeToString(data) }

// Of linux/netfilter/nf_tables.h: enum nft_match_attributes.
const (
	matchName     = 1
	matchRevision = 2
	matchInfo     = 3
)

// match reads a match of iptables.
func (s *shape) match(data []byte) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case matchName:
			name = ad.String()
		case matchInfo:
			if name == "comment" {
				s.comment, _, _ = strings.Cut(string(ad.Bytes()), "\x00")
			}
		}
	}
	return ad.Err()
}

// verdict reads where an expression "immediate" leads, if to a chain.
func (s *shape) verdict(data []byte) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	for ad.Next() {
		if ad.Type() != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		ad.Nested(func(value *netlink.AttributeDecoder) error {
			for value.Next() {
				if value.Type() != unix.NFTA_DATA_VERDICT {
					continue
				}
				value.Nested(func(verdict *netlink.AttributeDecoder) error {
					for verdict.Next() {
						if verdict.Type() == unix.NFTA_VERDICT_CHAIN {
							s.jump = verdict.String()
						}
					}
					return nil
				})
			}
			return nil
		})
	}
	return ad.Err()
}

// The kernel lists nested attributes without the flag that says so.

// comparison is what "-s" or "-d" and an address are in nf_tables.
func comparison(a netip.Addr, source bool) string {
	offset, length := uint32(12), uint32(4) // of struct iphdr
	if a.Is6() {
		offset, length = 8, 16 // of struct ipv6hdr
	}
	if !source {
		offset += length
	}
	load := appendNumber(nil, unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
	load = appendNumber(load, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
	load = appendNumber(load, unix.NFTA_PAYLOAD_OFFSET, offset)
	load = appendNumber(load, unix.NFTA_PAYLOAD_LEN, length)
	compare := appendNumber(nil, unix.NFTA_CMP_SREG, unix.NFT_REG_1)
	compare = appendNumber(compare, unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
	compare = appendAttr(compare, unix.NFTA_CMP_DATA, appendAttr(nil, unix.NFTA_DATA_VALUE, a.AsSlice()))
	return word("payload", load) + ", " + word("cmp", compare)
}

// acceptance is what "-j ACCEPT" is in nf_tables.
func acceptance() string {
	const accept = 1 // NF_ACCEPT
	return verdictWord(accept)
}

// verdictWord returns the form of a verdict in nf_tables.
func verdictWord(code uint32) string {
	verdict := appendNumber(nil, unix.NFTA_VERDICT_CODE, code)
	data := appendNumber(nil, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	return word("immediate", appendAttr(data, unix.NFTA_IMMEDIATE_DATA, appendAttr(nil, unix.NFTA_DATA_VERDICT, verdict)))
}

// tracked is what "-m conntrack --ctstate RELATED,ESTABLISHED" is in nf_tables:
// the third revision of the match, whose struct xt_conntrack_mtinfo3 says that
// the state is to be looked at, and which.
func tracked() string {
	const size, flags, states = 168, 146, 150 // of the struct, and where its fields are
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
	data := appendString(nil, matchName, "conntrack")
	data = appendNumber(data, matchRevision, 3)
	return word("match", appendAttr(data, matchInfo, info))
}

// marks reports whether all that the rule does is to mark, as portmap has it.
func (s shape) marks(mark uint32) bool {
	info := binary.NativeEndian.AppendUint32(nil, mark)
	info = binary.NativeEndian.AppendUint32(info, mark)
	data := appendString(nil, matchName, "MARK")
	data = appendNumber(data, matchRevision, 2)
	target := word("target", appendAttr(data, matchInfo, info))
	return s.comment == markComment && len(s.words) == 2 && s.words[1] == target
}

// masquerades reports whether all that the rule does is to masquerade what has
// the mark.
func (s shape) masquerades(mark uint32) bool {
	value := binary.NativeEndian.AppendUint32(nil, mark)
	compare := appendNumber(nil, unix.NFTA_CMP_SREG, unix.NFT_REG_1)
	compare = appendNumber(compare, unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
	compare = appendAttr(compare, unix.NFTA_CMP_DATA, appendAttr(nil, unix.NFTA_DATA_VALUE, value))
	masked := hex.EncodeToString(appendAttr(nil, unix.NFTA_BITWISE_MASK, appendAttr(nil, unix.NFTA_DATA_VALUE, value)))
	target := word("target", appendString(nil, matchName, "MASQUERADE"))
	return len(s.words) == 4 && strings.HasPrefix(s.words[0], "meta ") && strings.Contains(s.words[1], masked) &&
		s.words[2] == word("cmp", compare) && strings.HasPrefix(s.words[3], target)
}
