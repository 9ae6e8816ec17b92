package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// spoofCheck are the rules that drop what a container sends with another MAC
// address than its own, in the form of the reference plugin:
//
//	table bridge nat {
//		chain PREROUTING {
//			type filter hook prerouting priority -300; policy accept;
//			iifname "vethX" jump cni-br-iface-ID-eth0 comment "macspoofchk-ID-eth0"
//		}
//		chain cni-br-iface-ID-eth0 {
//			jump cni-br-iface-ID-eth0-mac comment "macspoofchk-ID-eth0"
//		}
//		chain cni-br-iface-ID-eth0-mac {
//			ether saddr MAC return comment "macspoofchk-ID-eth0"
//			drop comment "macspoofchk-ID-eth0"
//		}
//	}
type spoofCheck struct {
	host  *netns.Handle
	owner string // ID-eth0
}

const (
	spoofTable = "nat"
	spoofHook  = "PREROUTING"

	// longestComment is what nft takes (NFTNL_UDATA_COMMENT_MAXLEN).
	longestComment = 128
)

func newSpoofCheck(r *plugin.Request) spoofCheck {
	return spoofCheck{host: r.Host, owner: r.ContainerID + "-" + r.IfName}
}

func (s spoofCheck) chain() string    { return "cni-br-iface-" + s.owner }
func (s spoofCheck) macChain() string { return s.chain() + "-mac" }
func (s spoofCheck) comment() string  { return "macspoofchk-" + s.owner }

// add makes the rules for a port of the bridge, in one transaction.
func (s spoofCheck) add(ctx context.Context, port string, mac net.HardwareAddr) error {
	if len(s.comment()) > longestComment {
		return invalid(`"macspoofchk": the comment %q of its rules is longer than %d bytes`, s.comment(), longestComment)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, port)
	create := netlink.Create
	msgs := []netlink.Message{
		nftMessage(unix.NFT_MSG_NEWTABLE, create, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, spoofTable) }),
		nftMessage(unix.NFT_MSG_NEWCHAIN, create, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, spoofTable)
			e.String(unix.NFTA_CHAIN_NAME, spoofHook)
			e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
				bigEndian(e, unix.NFTA_HOOK_HOOKNUM, 0) // NF_BR_PRE_ROUTING, <linux/netfilter_bridge.h>
				bigEndian(e, unix.NFTA_HOOK_PRIORITY, -300)
				return nil
			})
			bigEndian(e, unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
			e.String(unix.NFTA_CHAIN_TYPE, "filter")
		}),
	}
	for _, chain := range []string{s.chain(), s.macChain()} {
		msgs = append(msgs, nftMessage(unix.NFT_MSG_NEWCHAIN, create, inChain(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, chain)),
			// Of an attachment that was not deleted.
			nftMessage(unix.NFT_MSG_DELRULE, 0, inChain(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, chain)))
	}
	msgs = append(msgs,
		s.rule(spoofHook, meta(unix.NFT_META_IIFNAME), equal(name), verdict(unix.NFT_JUMP, s.chain())),
		s.rule(s.chain(), verdict(unix.NFT_JUMP, s.macChain())),
		s.rule(s.macChain(), etherSource(), equal(mac), verdict(unix.NFT_RETURN, "")),
		s.rule(s.macChain(), verdict(0, "")), // NF_DROP
	)
	return s.do(ctx, func(c *netlink.Conn) error { return transact(c, msgs) })
}

// mostChanges is how often the rules may change while they are read and
// deleted; each time it is another attachment's that makes progress.
const mostChanges = 100

// remove deletes the rules, which is fine if they are gone.
func (s spoofCheck) remove(ctx context.Context) error {
	return s.do(ctx, func(c *netlink.Conn) (err error) {
		for range mostChanges {
			var msgs []netlink.Message
			if msgs, err = s.deletions(c); err != nil || len(msgs) == 0 {
				return err
			}
			if err = transact(c, msgs); !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return err
	})
}

// deletions are the messages that delete what there is.
func (s spoofCheck) deletions(c *netlink.Conn) ([]netlink.Message, error) {
	handles, err := s.rules(c, spoofHook)
	if err != nil {
		return nil, err
	}
	var msgs []netlink.Message
	for _, handle := range handles {
		msgs = append(msgs, nftMessage(unix.NFT_MSG_DELRULE, 0, func(e *netlink.AttributeEncoder) {
			inChain(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, spoofHook)(e)
			e.Bytes(unix.NFTA_RULE_HANDLE, handle)
		}))
	}
	for _, chain := range []string{s.chain(), s.macChain()} { // one jumps to the other
		in := inChain(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, chain)
		_, err := c.Execute(nftMessage(unix.NFT_MSG_GETCHAIN, 0, in))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for chain %q: %w", chain, err)
		}
		msgs = append(msgs, nftMessage(unix.NFT_MSG_DELCHAIN, 0, in))
	}
	return msgs, nil
}

// check returns an error that names the chain in which rules are missing.
func (s spoofCheck) check(ctx context.Context) error {
	return s.do(ctx, func(c *netlink.Conn) error {
		for _, in := range []struct {
			chain string
			want  int
		}{{s.chain(), 1}, {s.macChain(), 2}, {spoofHook, 1}} {
			handles, err := s.rules(c, in.chain)
			if err != nil {
				return err
			}
			if len(handles) < in.want {
				return fmt.Errorf("chain %q of table bridge nat has %d rules with the comment %q, not %d",
					in.chain, len(handles), s.comment(), in.want)
			}
		}
		return nil
	})
}

// do calls fn with a socket, and names the field of the configuration in its
// error.
func (s spoofCheck) do(ctx context.Context, fn func(c *netlink.Conn) error) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(s.host.File().Fd())})
	if err == nil {
		// A deadline that has passed ends a call that waits. That it can be
		// set is a property of the socket, which is the same each time.
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		err = errors.Join(fn(c), c.Close())
		stop()
	}
	if err != nil {
		return fmt.Errorf(`"macspoofchk": %w`, err)
	}
	return nil
}

// list is a chain's rules, all of one generation. Without the chain there are
// none.
func list(c *netlink.Conn, chain string) ([]netlink.Message, error) {
	for range mostChanges {
		msgs, err := c.Execute(nftMessage(unix.NFT_MSG_GETRULE, netlink.Dump, inChain(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, chain)))
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the rules of chain %q: %w", chain, err)
		}
		// The rules changed between two parts of the answer.
		if !slices.ContainsFunc(msgs, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 }) {
			return msgs, nil
		}
	}
	return nil, fmt.Errorf("list the rules of chain %q: they have changed each of %d times", chain, mostChanges)
}

// rules returns the handles of the rules in a chain that are ours by their
// comment.
func (s spoofCheck) rules(c *netlink.Conn, chain string) ([][]byte, error) {
	msgs, err := list(c, chain)
	if err != nil {
		return nil, err
	}
	var handles [][]byte
	for _, m := range msgs {
		var in string
		var handle, data []byte
		d, err := netlink.NewAttributeDecoder(m.Data[min(genSize, len(m.Data)):])
		if err != nil {
			return nil, err
		}
		for d.Next() {
			switch d.Type() {
			case unix.NFTA_RULE_CHAIN: // old kernels list all chains'
				in = d.String()
			case unix.NFTA_RULE_HANDLE:
				handle = d.Bytes()
			case unix.NFTA_RULE_USERDATA:
				data = d.Bytes()
			}
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
		if in == chain && string(data) == string(commentData(s.comment())) {
			handles = append(handles, handle)
		}
	}
	return handles, nil
}

// rule is a new rule at the end of a chain.
func (s spoofCheck) rule(chain string, exprs ...func(*netlink.AttributeEncoder) error) netlink.Message {
	return nftMessage(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(e *netlink.AttributeEncoder) {
		inChain(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, chain)(e)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, expr := range exprs {
				e.Nested(unix.NFTA_LIST_ELEM, expr)
			}
			return nil
		})
		e.Bytes(unix.NFTA_RULE_USERDATA, commentData(s.comment()))
	})
}

// commentData is a comment as nft keeps it: a type, which is 0, a length, and
// text that ends with a zero.
func commentData(text string) []byte {
	return append(append([]byte{0, byte(len(text) + 1)}, text...), 0)
}
