package netfilter

import (
	"cmp"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// decodeRule reads a message about a rule.
func decodeRule(family uint8, data []byte) (nftRule, error) {
	var r nftRule
	ad, err := attributes(data)
	if err != nil {
		return r, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = ad.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.comment = comment(ad.Bytes())
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(e *netlink.AttributeDecoder) error { return r.expression(family, e) })
				}
				return nil
			})
		}
	}
	return r, ad.Err()
}

// comment returns the comment in a rule's user data, which the kernel keeps and
// does not look at: a byte of type, 0 for a comment, a byte of length, the
// bytes, and so on.
func comment(data []byte) string {
	for len(data) >= 2 {
		typ, n := data[0], int(data[1])
		data = data[2:]
		if n > len(data) {
			return ""
		}
		if typ == 0 && n > 0 {
			return string(data[:n-1]) // without the zero byte that ends it
		}
		data = data[n:]
	}
	return ""
}

// expression notes what an expression compares with, loads, or jumps to.
func (r *nftRule) expression(family uint8, ad *netlink.AttributeDecoder) error {
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			// The data is of another attribute in each expression.
			if holder := map[string]uint16{"cmp": unix.NFTA_CMP_DATA, "immediate": unix.NFTA_IMMEDIATE_DATA}[name]; holder != 0 {
				ad.Nested(func(e *netlink.AttributeDecoder) error { return r.data(family, holder, e) })
			}
		}
	}
	return nil
}

func (r *nftRule) data(family uint8, holder uint16, ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		if ad.Type() != holder {
			continue
		}
		ad.Nested(func(value *netlink.AttributeDecoder) error {
			for value.Next() {
				switch value.Type() {
				case unix.NFTA_DATA_VALUE:
					r.addrs = append(r.addrs, addresses(family, value.Bytes())...)
				case unix.NFTA_DATA_VERDICT:
					value.Nested(func(verdict *netlink.AttributeDecoder) error {
						for verdict.Next() {
							if verdict.Type() == unix.NFTA_VERDICT_CHAIN {
								r.jump = verdict.String()
							}
						}
						return nil
					})
				}
			}
			return nil
		})
	}
	return nil
}

// addresses reads data as addresses of the family: one, or several in a row, as
// nft compares source and destination at once when it can.
func addresses(family uint8, data []byte) []netip.Addr {
	size := cmp.Or(map[uint8]int{familyIPv4: 4, familyIPv6: 16}[family], len(data)+1)
	if len(data)%size != 0 {
		return nil
	}
	var addrs []netip.Addr
	for ; len(data) > 0; data = data[size:] {
		if a, ok := netip.AddrFromSlice(data[:size]); ok {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
