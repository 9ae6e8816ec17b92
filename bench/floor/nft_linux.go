package floor

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Script creates the nftables table for the containers' elements. It runs once.
// A packet costs one map lookup, regardless of the number of containers.
const Script = `table inet bench_floor {
	set masq4 { type ipv4_addr; }
	set masq6 { type ipv6_addr; }
	map ports4 { type inet_proto . inet_service : ipv4_addr . inet_service; }
	map ports6 { type inet_proto . inet_service : ipv6_addr . inet_service; }
	chain ports {
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @ports4
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @ports6
	}
	chain prerouting {
		type nat hook prerouting priority dstnat;
		fib daddr type local jump ports
	}
	chain output {
		type nat hook output priority -100;
		fib daddr type local jump ports
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr @masq4 ip daddr != 10.0.0.0/8 masquerade
		ip6 saddr @masq6 ip6 daddr != fd00::/8 masquerade
	}
}
`

const table = "bench_floor"

// filterHeader encodes struct nfgenmsg.
func filterHeader(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, 0}, resource)
}

// transaction wraps the messages of fill in a transaction.
func (m *message) transaction(fill func()) {
	m.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, filterHeader(0, unix.NFNL_SUBSYS_NFTABLES))
	m.end()
	fill()
	m.begin(unix.NFNL_MSG_BATCH_END, 0, filterHeader(0, unix.NFNL_SUBSYS_NFTABLES))
	m.end()
}

// element writes the addition or deletion of a set's element. A deletion needs
// only the key.
func (m *message) element(verb uint16, set string, key, data []byte) {
	flags := uint16(flagAck)
	if verb == unix.NFT_MSG_NEWSETELEM {
		flags |= flagCreate | flagExcl
	}
	m.begin(unix.NFNL_SUBSYS_NFTABLES<<8|verb, flags, filterHeader(unix.NFPROTO_INET, 0))
	m.text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	m.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	m.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
		m.nest(unix.NFTA_LIST_ELEM, func() {
			m.nest(unix.NFTA_SET_ELEM_KEY, func() { m.attr(unix.NFTA_DATA_VALUE, key) })
			if data != nil && verb == unix.NFT_MSG_NEWSETELEM {
				m.nest(unix.NFTA_SET_ELEM_DATA, func() { m.attr(unix.NFTA_DATA_VALUE, data) })
			}
		})
	})
	m.end()
}

// elements writes the elements of a container: masquerading for its addresses,
// and a TCP port of the host forwarded to port 80 of the container.
func (m *message) elements(verb uint16, addrs []netip.Prefix, port uint16) {
	for _, p := range addrs {
		suffix := "6"
		if p.Addr().Is4() {
			suffix = "4"
		}
		m.element(verb, "masq"+suffix, p.Addr().AsSlice(), nil)
		m.element(verb, "ports"+suffix, join([]byte{unix.IPPROTO_TCP}, big(port)), join(p.Addr().AsSlice(), big(80)))
	}
}

func big(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// join encodes a concatenation. Each part is padded to four bytes.
func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}
