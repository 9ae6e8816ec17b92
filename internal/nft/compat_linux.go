package nft

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Counter counts packets and bytes, from zero. Every rule of iptables has one.
func (e Exprs) Counter() Exprs {
	return e.expr("counter", func(b []byte) []byte {
		b = appendAttr(b, unix.NFTA_COUNTER_BYTES, make([]byte, 8))
		return appendAttr(b, unix.NFTA_COUNTER_PACKETS, make([]byte, 8))
	})
}

// Compat returns a message about a new rule with the protocol whose packets it
// matches. Matches and targets of iptables that need a protocol refuse a rule
// without it. The kernel does not list it.
func (m Message) Compat(protocol byte) Message {
	m.attrs = appendNested(m.attrs, unix.NFTA_RULE_COMPAT, func(b []byte) []byte {
		b = appendNumber(b, unix.NFTA_RULE_COMPAT_PROTO, uint32(protocol))
		return appendNumber(b, unix.NFTA_RULE_COMPAT_FLAGS, 0)
	})
	return m
}

// Revision returns the revision of a match or target of iptables.
func (x Expr) Revision() uint32 { return x.Number(extensionRevision) }

// Number returns the number that an attribute of the expression holds, or 0 if the
// expression lacks it.
func (x Expr) Number(attr uint16) uint32 {
	if data := attribute(x.data, attr); len(data) == 4 {
		return binary.BigEndian.Uint32(data)
	}
	return 0
}

// Verdict returns the code of a verdict: NF_ACCEPT, NFT_JUMP.
func (x Expr) Verdict() (code int32, ok bool) {
	if x.Name != "immediate" {
		return 0, false
	}
	data := attribute(attribute(x.constant(), unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CODE)
	if len(data) != 4 {
		return 0, false
	}
	return int32(binary.BigEndian.Uint32(data)), true
}

// OnlyMasks reports whether a bitwise expression clears the bits outside of its mask,
// and does nothing else.
func (x Expr) OnlyMasks() bool {
	const operation = 6 // NFTA_BITWISE_OP; 0 is mask and xor, and all that older kernels have
	flipped := attribute(attribute(x.data, unix.NFTA_BITWISE_XOR), unix.NFTA_DATA_VALUE)
	return x.Name == "bitwise" && x.Number(operation) == 0 && len(bytes.Trim(flipped, "\x00")) == 0
}
