package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Exprs are the expressions of a rule, in the kernel's encoding. They are the ones
// that nft compiles for the rule in the comment beside each use, so nft, and
// plugins that compare with its listing, show that rule.
type Exprs []byte

// Register is where an expression leaves its result: 4 bytes each.
type Register uint32

// Reg returns the register at an offset in bytes. As in nft, one that starts a
// register of 16 bytes has the number of that.
func Reg(offset int) Register {
	if offset%16 == 0 {
		return Register(unix.NFT_REG_1 + offset/16)
	}
	return Register(unix.NFT_REG32_00 + offset/4)
}

const (
	verdictDrop   = 0 // NF_DROP
	verdictAccept = 1 // NF_ACCEPT
)

// expr appends an expression.
func (e Exprs) expr(name string, attrs ...[]byte) Exprs {
	return append(e, nested(unix.NFTA_LIST_ELEM, str(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, attrs...))...)
}

// Meta loads a fact about the packet, an NFT_META number.
func (e Exprs) Meta(key uint32, to Register) Exprs {
	return e.expr("meta",
		number(unix.NFTA_META_KEY, key),
		number(unix.NFTA_META_DREG, uint32(to)))
}

// Payload loads bytes of the packet.
func (e Exprs) Payload(base, offset, size uint32, to Register) Exprs {
	return e.expr("payload",
		number(unix.NFTA_PAYLOAD_DREG, uint32(to)),
		number(unix.NFTA_PAYLOAD_BASE, base),
		number(unix.NFTA_PAYLOAD_OFFSET, offset),
		number(unix.NFTA_PAYLOAD_LEN, size))
}

// Compare ends the rule unless the register compares with the data: op is
// NFT_CMP_EQ or NFT_CMP_NEQ.
func (e Exprs) Compare(from Register, op uint32, data []byte) Exprs {
	return e.expr("cmp",
		number(unix.NFTA_CMP_SREG, uint32(from)),
		number(unix.NFTA_CMP_OP, op),
		value(unix.NFTA_CMP_DATA, data))
}

// Equal compares the first register with the value, for equality.
func (e Exprs) Equal(value []byte) Exprs { return e.Compare(Reg(0), unix.NFT_CMP_EQ, value) }

// Mask clears the bits of the register that are not in the mask.
func (e Exprs) Mask(where Register, mask []byte) Exprs {
	return e.expr("bitwise",
		number(unix.NFTA_BITWISE_SREG, uint32(where)),
		number(unix.NFTA_BITWISE_DREG, uint32(where)),
		number(unix.NFTA_BITWISE_LEN, uint32(len(mask))),
		value(unix.NFTA_BITWISE_MASK, mask),
		value(unix.NFTA_BITWISE_XOR, make([]byte, len(mask))))
}

// In ends the rule unless the key that starts in the first register is in the set.
func (e Exprs) In(set string) Exprs {
	return e.expr("lookup",
		str(unix.NFTA_LOOKUP_SET, set),
		number(unix.NFTA_LOOKUP_SREG, uint32(Reg(0))))
}

// Mapped replaces the key that starts in the first register by its value in the map.
func (e Exprs) Mapped(set string) Exprs {
	return e.expr("lookup",
		str(unix.NFTA_LOOKUP_SET, set),
		number(unix.NFTA_LOOKUP_SREG, uint32(Reg(0))),
		number(unix.NFTA_LOOKUP_DREG, uint32(Reg(0))))
}

// Counter counts packets and bytes.
func (e Exprs) Counter() Exprs { return e.expr("counter") }

// Verdict ends the rule. The chain is the end of a jump or goto.
func (e Exprs) Verdict(verdict int32, chain string) Exprs {
	attrs := number(unix.NFTA_VERDICT_CODE, uint32(verdict))
	if chain != "" {
		attrs = append(attrs, str(unix.NFTA_VERDICT_CHAIN, chain)...)
	}
	return e.expr("immediate",
		number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nested(unix.NFTA_IMMEDIATE_DATA, nested(unix.NFTA_DATA_VERDICT, attrs)))
}

func (e Exprs) Jump(chain string) Exprs { return e.Verdict(unix.NFT_JUMP, chain) }
func (e Exprs) Accept() Exprs           { return e.Verdict(verdictAccept, "") }
func (e Exprs) Drop() Exprs             { return e.Verdict(verdictDrop, "") }
func (e Exprs) Masquerade() Exprs       { return e.expr("masq") }

// DNAT sends the packet to the address in the first register and the port in
// another.
func (e Exprs) DNAT(family uint8, port Register) Exprs {
	return e.expr("nat",
		number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT),
		number(unix.NFTA_NAT_FAMILY, uint32(family)),
		number(unix.NFTA_NAT_REG_ADDR_MIN, uint32(Reg(0))),
		number(unix.NFTA_NAT_REG_PROTO_MIN, uint32(port)))
}

// Match is a match of iptables; info is its struct.
func (e Exprs) Match(name string, revision uint32, info []byte) Exprs {
	return e.expr("match",
		str(unix.NFTA_MATCH_NAME, name),
		number(unix.NFTA_MATCH_REV, revision),
		attr(unix.NFTA_MATCH_INFO, info))
}

// ToHost ends the rule unless the packet is for an address of this host.
//
//	fib daddr type local
func (e Exprs) ToHost() Exprs {
	return e.expr("fib",
		number(unix.NFTA_FIB_DREG, uint32(Reg(0))),
		number(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE),
		number(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)).Equal(Native32(unix.RTN_LOCAL))
}

// Translated ends the rule unless the packet's destination has been translated.
//
//	ct status dnat
func (e Exprs) Translated() Exprs {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return e.expr("ct",
		number(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS),
		number(unix.NFTA_CT_DREG, uint32(Reg(0)))).Mask(Reg(0), Native32(statusDNAT)).Compare(Reg(0), unix.NFT_CMP_NEQ, Native32(0))
}

// Family ends the rule unless the packet is of the family, in a table for both.
func (e Exprs) Family(family uint8) Exprs {
	return e.Meta(unix.NFT_META_NFPROTO, Reg(0)).Equal([]byte{family})
}

// Source loads the packet's source address.
func (e Exprs) Source(family uint8, to Register) Exprs { return e.address(family, 12, 8, to) }

// Destination loads the packet's destination address.
func (e Exprs) Destination(family uint8, to Register) Exprs { return e.address(family, 16, 24, to) }

func (e Exprs) address(family uint8, in4, in6 uint32, to Register) Exprs {
	if family == FamilyIPv4 {
		return e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, in4, 4, to)
	}
	return e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, in6, 16, to)
}

// Protocol loads the number of the transport protocol.
func (e Exprs) Protocol(to Register) Exprs { return e.Meta(unix.NFT_META_L4PROTO, to) }

// Port loads the destination port.
func (e Exprs) Port(to Register) Exprs {
	return e.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, to)
}

// PrefixMask returns a mask of that many bits in size bytes.
func PrefixMask(bits, size int) []byte { return net.CIDRMask(bits, 8*size) }

// Native32 returns a number in the byte order that a register has it in.
func Native32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// FamilyOf returns the family of the address.
func FamilyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}
