package bridge

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// genSize is the size of a struct nfgenmsg (<linux/netfilter/nfnetlink.h>).
const genSize = 4

// nftMessage is a request about the family bridge.
func nftMessage(typ uint16, flags netlink.HeaderFlags, attrs func(*netlink.AttributeEncoder)) netlink.Message {
	e := netlink.NewAttributeEncoder()
	attrs(e)
	data, err := e.Encode()
	if err != nil {
		// Of all that is encoded here nothing is too long or unknown.
		data = nil
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_BRIDGE, unix.NFNETLINK_V0, 0, 0}, data...),
	}
}

// transact sends the messages as one transaction, all or nothing of which is
// done.
func transact(c *netlink.Conn, msgs []netlink.Message) error {
	border := func(typ uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	// One answer tells how all of it went: the first error, or that the last
	// one succeeded.
	msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge
	all := append([]netlink.Message{border(unix.NFNL_MSG_BATCH_BEGIN)}, msgs...)
	if _, err := c.SendMessages(append(all, border(unix.NFNL_MSG_BATCH_END))); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

func bigEndian(e *netlink.AttributeEncoder, typ uint16, v int32) {
	e.Bytes(typ, binary.BigEndian.AppendUint32(nil, uint32(v)))
}

// inChain names a chain, by the types that the attributes have in a message.
func inChain(tableType, chainType uint16, chain string) func(*netlink.AttributeEncoder) {
	return func(e *netlink.AttributeEncoder) {
		e.String(tableType, spoofTable)
		e.String(chainType, chain)
	}
}

// expr is an expression: a name and what it is parametrized by.
func expr(name string, data func(e *netlink.AttributeEncoder)) func(*netlink.AttributeEncoder) error {
	return func(e *netlink.AttributeEncoder) error {
		e.String(unix.NFTA_EXPR_NAME, name)
		e.Nested(unix.NFTA_EXPR_DATA, func(e *netlink.AttributeEncoder) error {
			data(e)
			return nil
		})
		return nil
	}
}

// meta loads what is known of a packet into the first register.
func meta(key int32) func(*netlink.AttributeEncoder) error {
	return expr("meta", func(e *netlink.AttributeEncoder) {
		bigEndian(e, unix.NFTA_META_KEY, key)
		bigEndian(e, unix.NFTA_META_DREG, unix.NFT_REG_1)
	})
}

// etherSource loads the address that a frame comes from, its bytes 6 to 11.
func etherSource() func(*netlink.AttributeEncoder) error {
	return expr("payload", func(e *netlink.AttributeEncoder) {
		bigEndian(e, unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
		bigEndian(e, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_LL_HEADER)
		bigEndian(e, unix.NFTA_PAYLOAD_OFFSET, 6)
		bigEndian(e, unix.NFTA_PAYLOAD_LEN, 6)
	})
}

// equal goes on if the first register has the value.
func equal(value []byte) func(*netlink.AttributeEncoder) error {
	return expr("cmp", func(e *netlink.AttributeEncoder) {
		bigEndian(e, unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		bigEndian(e, unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		e.Nested(unix.NFTA_CMP_DATA, func(e *netlink.AttributeEncoder) error {
			e.Bytes(unix.NFTA_DATA_VALUE, value)
			return nil
		})
	})
}

// verdict says what becomes of a packet; a jump has a chain.
func verdict(code int32, chain string) func(*netlink.AttributeEncoder) error {
	return expr("immediate", func(e *netlink.AttributeEncoder) {
		bigEndian(e, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		e.Nested(unix.NFTA_IMMEDIATE_DATA, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) error {
				bigEndian(e, unix.NFTA_VERDICT_CODE, code)
				if chain != "" {
					e.String(unix.NFTA_VERDICT_CHAIN, chain)
				}
				return nil
			})
			return nil
		})
	})
}
