package floor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// ForwardScript creates the chain that has the rules of CNI's firewall plugin on
// a host with iptables-nft. It runs once, after Script.
const ForwardScript = `table ip filter {
	chain CNI-FORWARD { }
	chain FORWARD {
		type filter hook forward priority filter; policy accept;
		counter jump CNI-FORWARD
	}
}
`

const (
	forwardTable = "filter"
	forwardChain = "CNI-FORWARD"
)

// Offsets in the header of an IPv4 packet.
const source4, destination4 = 12, 16

// addForward writes the two rules of each IPv4 address, as "iptables -S
// CNI-FORWARD" lists them:
//
//	-d ADDRESS -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-s ADDRESS -j ACCEPT
//
// The kernel answers with the rules, for their handles. addForward returns their
// number.
func (m *message) addForward(addrs []netip.Prefix) (rules int) {
	for _, p := range addrs {
		if !p.Addr().Is4() {
			continue
		}
		m.rule(func() {
			m.compareAddress(destination4, p.Addr())
			m.tracked()
		})
		m.rule(func() { m.compareAddress(source4, p.Addr()) })
		rules += 2
	}
	return rules
}

// rule writes a rule at the end of the chain. It accepts the packets that match.
func (m *message) rule(match func()) {
	m.begin(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE, flagAck|flagEcho|flagCreate|flagAppend, filterHeader(unix.NFPROTO_IPV4, 0))
	m.text(unix.NFTA_RULE_TABLE, forwardTable)
	m.text(unix.NFTA_RULE_CHAIN, forwardChain)
	m.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
		match()
		m.expression("counter", func() {
			m.attr(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
			m.attr(unix.NFTA_COUNTER_PACKETS, make([]byte, 8))
		})
		m.expression("immediate", func() {
			m.big32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
			m.nest(unix.NFTA_IMMEDIATE_DATA, func() {
				m.nest(unix.NFTA_DATA_VERDICT, func() { m.big32(unix.NFTA_VERDICT_CODE, 1 /* NF_ACCEPT */) })
			})
		})
	})
	m.end()
}

func (m *message) expression(name string, fill func()) {
	m.nest(unix.NFTA_LIST_ELEM, func() {
		m.text(unix.NFTA_EXPR_NAME, name)
		m.nest(unix.NFTA_EXPR_DATA, fill)
	})
}

// compareAddress writes a comparison of four bytes of the packet's header.
func (m *message) compareAddress(offset uint32, a netip.Addr) {
	m.expression("payload", func() {
		m.big32(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
		m.big32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
		m.big32(unix.NFTA_PAYLOAD_OFFSET, offset)
		m.big32(unix.NFTA_PAYLOAD_LEN, 4)
	})
	m.expression("cmp", func() {
		m.big32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		m.big32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		m.nest(unix.NFTA_CMP_DATA, func() { m.attr(unix.NFTA_DATA_VALUE, a.AsSlice()) })
	})
}

// tracked writes iptables' match for packets of known connections: struct
// xt_conntrack_mtinfo3 with the states to match, and the flag that they count.
func (m *message) tracked() {
	const size, flags, states = 168, 146, 150
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // ESTABLISHED, RELATED
	m.expression("match", func() {
		m.text(unix.NFTA_MATCH_NAME, "conntrack")
		m.big32(unix.NFTA_MATCH_REV, 3)
		m.attr(unix.NFTA_MATCH_INFO, info)
	})
}

func (m *message) deleteForward(rules []uint64) {
	for _, handle := range rules {
		m.begin(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELRULE, flagAck, filterHeader(unix.NFPROTO_IPV4, 0))
		m.text(unix.NFTA_RULE_TABLE, forwardTable)
		m.text(unix.NFTA_RULE_CHAIN, forwardChain)
		m.attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
		m.end()
	}
}

// handles returns the handles of the new rules in a reply.
func handles(replies []syscall.NetlinkMessage, want int) ([]uint64, error) {
	const header = 4 // struct nfgenmsg
	var found []uint64
	for _, r := range replies {
		if r.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE || len(r.Data) < header {
			continue
		}
		if handle := attribute(r.Data[header:], unix.NFTA_RULE_HANDLE); len(handle) == 8 {
			found = append(found, binary.BigEndian.Uint64(handle))
		}
	}
	if len(found) != want {
		return nil, fmt.Errorf("nftables: %d new rules are reported, want %d", len(found), want)
	}
	return found, nil
}

// attribute returns the value of the first attribute of a type, or nil.
func attribute(b []byte, typ uint16) []byte {
	for len(b) >= attrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrLen || n > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&^nested == typ {
			return b[attrLen:n]
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}
