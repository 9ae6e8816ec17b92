package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nfnetlink asks the kernel, in the network namespace of the calling thread.
//
// It speaks netlink itself, as google/nftables neither says which generation
// of the rules it lists, nor deletes under the condition that it is still that
// one, nor keeps the kernel's errno.
type nfnetlink struct{}

func (nfnetlink) list(ctx context.Context, table nftTable, chains []string) (content nftContent, err error) {
	err = dial(ctx, func(c *netlink.Conn) error {
		for range mostChanges {
			before, err := generation(c)
			if err != nil {
				return err
			}
			content = nftContent{generation: before}
			if err := content.read(c, table, chains); err != nil {
				return err
			}
			// A dump takes several messages; rules can change between them.
			after, err := generation(c)
			if err != nil || after == before {
				return err
			}
		}
		return errChanged
	})
	if errors.Is(err, errNoNFTables) {
		return nftContent{}, nil
	}
	return content, err
}

// errNoNFTables means that the kernel has no nf_tables, so that there are no
// rules in it.
var errNoNFTables = errors.New("the kernel has no nf_tables")

func (n *nftContent) read(c *netlink.Conn, table nftTable, chains []string) error {
	for _, name := range chains {
		ok, err := chainExists(c, table, name)
		if err != nil {
			return err
		}
		if ok {
			n.chains = append(n.chains, name)
		}
	}
	msgs, err := c.Execute(request(unix.NFT_MSG_GETRULE, table.family, netlink.Request|netlink.Dump,
		netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: zeroTerminated(table.name)}))
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, m := range msgs {
		r, err := decodeRule(table.family, m.Data)
		if err != nil {
			return fmt.Errorf("read rule %d of chain %q: %w", r.handle, r.chain, err)
		}
		n.rules = append(n.rules, r)
	}
	return nil
}

func chainExists(c *netlink.Conn, table nftTable, name string) (bool, error) {
	if len(name) >= unix.NFT_NAME_MAXLEN {
		return false, nil // the kernel would take it for an invalid message
	}
	_, err := c.Execute(request(unix.NFT_MSG_GETCHAIN, table.family, netlink.Request,
		netlink.Attribute{Type: unix.NFTA_CHAIN_TABLE, Data: zeroTerminated(table.name)},
		netlink.Attribute{Type: unix.NFTA_CHAIN_NAME, Data: zeroTerminated(name)}))
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for chain %q: %w", name, err)
	}
	return true, nil
}

func generation(c *netlink.Conn) (uint32, error) {
	msgs, err := c.Execute(request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, netlink.Request))
	if errors.Is(err, unix.EINVAL) { // there is nothing in the message to be invalid
		return 0, errNoNFTables
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the generation: %w", err)
	}
	for _, m := range msgs {
		ad, err := attributes(m.Data)
		if err != nil {
			return 0, err
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_GEN_ID {
				return ad.Uint32(), nil
			}
		}
	}
	return 0, errors.New("ask for the generation: no answer")
}

func (nfnetlink) remove(ctx context.Context, generation uint32, objects []nftObject) error {
	id := netlink.Attribute{Type: unix.NFNL_BATCH_GENID, Data: binary.BigEndian.AppendUint32(nil, generation)}
	msgs := []netlink.Message{batchMessage(unix.NFNL_MSG_BATCH_BEGIN, id)}
	for _, o := range objects {
		msgs = append(msgs, o.deletion())
	}
	// One answer tells how all of it went: the first error, or that the last
	// one succeeded. More could overflow the socket.
	msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge
	msgs = append(msgs, batchMessage(unix.NFNL_MSG_BATCH_END))
	return dial(ctx, func(c *netlink.Conn) error {
		if _, err := c.SendMessages(msgs); err != nil {
			return err
		}
		_, err := c.Receive()
		if errors.Is(err, unix.ERESTART) {
			return errChanged
		}
		return err
	})
}

// deletion returns the message that deletes the object. That for a chain
// deletes the rules in it too.
func (o nftObject) deletion() netlink.Message {
	if o.handle == 0 {
		return request(unix.NFT_MSG_DELCHAIN, o.table.family, netlink.Request,
			netlink.Attribute{Type: unix.NFTA_CHAIN_TABLE, Data: zeroTerminated(o.table.name)},
			netlink.Attribute{Type: unix.NFTA_CHAIN_NAME, Data: zeroTerminated(o.chain)})
	}
	return request(unix.NFT_MSG_DELRULE, o.table.family, netlink.Request,
		netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: zeroTerminated(o.table.name)},
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: zeroTerminated(o.chain)},
		netlink.Attribute{Type: unix.NFTA_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, o.handle)})
}

// dial runs fn with a socket that stops waiting when the context ends.
func dial(ctx context.Context, fn func(*netlink.Conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return errNoNFTables
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// A deadline that has passed ends a call that waits. That it can be set is
	// a property of the socket, which is the same each time.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = fn(c)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// request returns a message of nf_tables: four bytes of struct nfgenmsg, then
// attributes.
func request(typ uint16, family uint8, flags netlink.HeaderFlags, attrs ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, marshal(attrs)...),
	}
}

// batchMessage returns what begins or ends a transaction. The last two bytes
// of its struct nfgenmsg say of which subsystem.
func batchMessage(typ uint16, attrs ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}, marshal(attrs)...),
	}
}

// marshal fails only for an attribute of more than 64 KiB, and the names here
// are of less than 256 bytes, as the kernel has given or knows them.
func marshal(attrs []netlink.Attribute) []byte {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		panic(fmt.Sprintf("attributes of a few bytes: %v", err))
	}
	return data
}

func zeroTerminated(s string) []byte { return append([]byte(s), 0) }

// attributes returns those of a message of nf_tables.
func attributes(data []byte) (*netlink.AttributeDecoder, error) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return nil, errors.New("a message is too short")
	}
	ad, err := netlink.NewAttributeDecoder(data[header:])
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return ad, err
}
