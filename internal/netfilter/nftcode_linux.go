package netfilter

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// code is what a rule does: its expressions as the kernel takes them. They are
// those that nft makes for the rule that stands beside each in a comment, so
// that nft, and the plugins that compare with what it lists, read that rule.
type code []byte

// register is where an expression leaves its result: 4 bytes each. The first
// has the number of the register of 16 bytes that it is the start of, as in
// nft.
type register uint32

// reg returns the register that begins after so many bytes.
func reg(bytes int) register {
	if bytes%16 == 0 {
		return register(unix.NFT_REG_1 + bytes/16)
	}
	return register(unix.NFT_REG32_00 + bytes/4)
}

// expr appends an expression.
func (c code) expr(name string, fill func([]byte) []byte) code {
	return appendNested(c, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = appendString(b, unix.NFTA_EXPR_NAME, name)
		return appendNested(b, unix.NFTA_EXPR_DATA, fill)
	})
}

// meta loads what is known about the packet.
func (c code) meta(key uint32, to register) code {
	return c.expr("meta", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_META_KEY, key)
		return appendNumber(b, unix.NFTA_META_DREG, uint32(to))
	})
}

// payload loads bytes of the packet.
func (c code) payload(base, offset, size uint32, to register) code {
	return c.expr("payload", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_PAYLOAD_DREG, uint32(to))
		b = appendNumber(b, unix.NFTA_PAYLOAD_BASE, base)
		b = appendNumber(b, unix.NFTA_PAYLOAD_OFFSET, offset)
		return appendNumber(b, unix.NFTA_PAYLOAD_LEN, size)
	})
}

// compare goes on with the rule only if the register is, or is not, the value.
func (c code) compare(from register, op uint32, value []byte) code {
	return c.expr("cmp", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_CMP_SREG, uint32(from))
		b = appendNumber(b, unix.NFTA_CMP_OP, op)
		return appendValue(b, unix.NFTA_CMP_DATA, value)
	})
}

func appendValue(b []byte, typ uint16, value []byte) []byte {
	return appendNested(b, typ, func(b []byte) []byte { return appendAttr(b, unix.NFTA_DATA_VALUE, value) })
}

// mask keeps the bits of the register that are in the mask.
func (c code) mask(where register, mask []byte) code {
	return c.expr("bitwise", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_BITWISE_SREG, uint32(where))
		b = appendNumber(b, unix.NFTA_BITWISE_DREG, uint32(where))
		b = appendNumber(b, unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		b = appendValue(b, unix.NFTA_BITWISE_MASK, mask)
		return appendValue(b, unix.NFTA_BITWISE_XOR, make([]byte, len(mask)))
	})
}

// in goes on only if what begins at the first register is in the set.
func (c code) in(set string) code {
	return c.expr("lookup", func(b []byte) []byte {
		b = appendString(b, unix.NFTA_LOOKUP_SET, set)
		return appendNumber(b, unix.NFTA_LOOKUP_SREG, uint32(reg(0)))
	})
}

// mapped replaces what begins at the first register by its value in the map.
func (c code) mapped(set string) code {
	return c.expr("lookup", func(b []byte) []byte {
		b = appendString(b, unix.NFTA_LOOKUP_SET, set)
		b = appendNumber(b, unix.NFTA_LOOKUP_SREG, uint32(reg(0)))
		return appendNumber(b, unix.NFTA_LOOKUP_DREG, uint32(reg(0)))
	})
}

// load puts a value into the register.
func (c code) load(to register, value []byte) code {
	return c.expr("immediate", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_IMMEDIATE_DREG, uint32(to))
		return appendValue(b, unix.NFTA_IMMEDIATE_DATA, value)
	})
}

// verdict ends the rule; chain is where it jumps or goes to.
func (c code) verdict(verdict int32, chain string) code {
	return c.expr("immediate", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		return appendNested(b, unix.NFTA_IMMEDIATE_DATA, func(b []byte) []byte {
			return appendNested(b, unix.NFTA_DATA_VERDICT, func(b []byte) []byte {
				b = appendNumber(b, unix.NFTA_VERDICT_CODE, uint32(verdict))
				if chain == "" {
					return b
				}
				return appendString(b, unix.NFTA_VERDICT_CHAIN, chain)
			})
		})
	})
}

func (c code) jump(chain string) code { return c.verdict(unix.NFT_JUMP, chain) }
func (c code) accept() code           { return c.verdict(1, "") } // NF_ACCEPT
func (c code) drop() code             { return c.verdict(0, "") } // NF_DROP

func (c code) masquerade() code {
	return c.expr("masq", func(b []byte) []byte { return b })
}

// dnat sends the packet to the address in the first register and the port in
// the one behind it; flags are as nft sets them.
func (c code) dnat(family uint8, port register, flags uint32) code {
	return c.expr("nat", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b = appendNumber(b, unix.NFTA_NAT_FAMILY, uint32(family))
		b = appendNumber(b, unix.NFTA_NAT_REG_ADDR_MIN, uint32(reg(0)))
		b = appendNumber(b, unix.NFTA_NAT_REG_PROTO_MIN, uint32(port))
		if flags != 0 {
			b = appendNumber(b, unix.NFTA_NAT_FLAGS, flags)
		}
		return b
	})
}

// toHost goes on only if the packet is for an address of this host.
//
//	fib daddr type local
func (c code) toHost() code {
	return c.expr("fib", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_FIB_DREG, uint32(reg(0)))
		b = appendNumber(b, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		return appendNumber(b, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
	}).compare(reg(0), unix.NFT_CMP_EQ, native32(unix.RTN_LOCAL))
}

// translated goes on only if the packet's destination is not the one that it
// was sent to.
//
//	ct status dnat
func (c code) translated() code {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return c.expr("ct", func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_CT_KEY, unix.NFT_CT_STATUS)
		return appendNumber(b, unix.NFTA_CT_DREG, uint32(reg(0)))
	}).mask(reg(0), native32(statusDNAT)).compare(reg(0), unix.NFT_CMP_NEQ, native32(0))
}

// family goes on only with packets of one, where a table has both.
func (c code) family(family uint8) code {
	return c.meta(unix.NFT_META_NFPROTO, reg(0)).compare(reg(0), unix.NFT_CMP_EQ, []byte{family})
}

// source and destination load the packet's addresses.
func (c code) source(family uint8, to register) code {
	if family == familyIPv4 {
		return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4, to)
	}
	return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 16, to)
}

func (c code) destination(family uint8, to register) code {
	if family == familyIPv4 {
		return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, to)
	}
	return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16, to)
}

// protocol and port load what the map of host ports is asked for.
func (c code) protocol(to register) code { return c.meta(unix.NFT_META_L4PROTO, to) }
func (c code) port(to register) code {
	return c.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, to)
}

// within goes on only if the address, which begins so many bytes into the
// network header, is, or is not, in the prefix. Like nft it loads no more bytes
// than it has to.
func (c code) within(offset uint32, op uint32, p netip.Prefix) code {
	addr := p.Masked().Addr().AsSlice()
	if p.Bits()%8 == 0 && p.Bits() > 0 {
		n := p.Bits() / 8
		return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(n), reg(0)).compare(reg(0), op, addr[:n])
	}
	return c.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(len(addr)), reg(0)).
		mask(reg(0), maskOf(p.Bits(), len(addr))).compare(reg(0), op, addr)
}

// maskOf is a mask of so many bits in so many bytes.
func maskOf(bits, size int) []byte {
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// native32 is a number as the kernel has it in a register.
func native32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// familyOf is the family of the address.
func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return familyIPv4
	}
	return familyIPv6
}
