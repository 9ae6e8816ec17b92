package reference

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// SpoofCheck stands for the rules that drop frames a container sends with another MAC
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
type SpoofCheck struct {
	sockets         nft.Sockets
	comment         string
	chain, macChain string
}

// ErrLongComment means that a container ID makes a longer comment than nft takes.
var ErrLongComment = errors.New("nft does not take it")

const spoofHook = "PREROUTING"

func spoofTable() nft.Table { return nft.Table{Family: nft.FamilyBridge, Name: "nat"} }

// NewSpoofCheck returns the rules for a container's interface.
func NewSpoofCheck(sockets nft.Sockets, id, ifName string) SpoofCheck {
	comment, chains := fwrules.SpoofNames(id, ifName)
	return SpoofCheck{sockets, comment, chains[0], chains[1]}
}

// search describes the rules, in these chains.
func (s SpoofCheck) search(in ...string) search {
	return search{table: spoofTable(), own: []string{s.chain, s.macChain}, in: in, comments: []string{s.comment}}
}

// Add makes the rules for a port of the bridge, in one transaction.
func (s SpoofCheck) Add(ctx context.Context, port string, mac net.HardwareAddr) error {
	if err := s.fits(); err != nil {
		return err
	}
	table := spoofTable()
	msgs := []nft.Message{nft.NewTable(table, ""), newSpoofChain(spoofHook)}
	for _, chain := range []string{s.chain, s.macChain} {
		// Rules in it are of an attachment that was not deleted.
		msgs = append(msgs, newSpoofChain(chain), nft.FlushChain(table, chain))
	}
	for _, r := range s.rules(port, mac) {
		msgs = append(msgs, nft.NewRule(table, r.chain, r.exprs, s.comment))
	}
	return s.sockets.Do(ctx, func(c *nft.Conn) error { return c.Transact(msgs, nil) })
}

func (s SpoofCheck) fits() error {
	if len(s.comment) > nft.LongestComment {
		return fmt.Errorf("the comment %q of its rules is longer than %d bytes: %w", s.comment, nft.LongestComment, ErrLongComment)
	}
	return nil
}

// newSpoofChain returns the message that makes one of the chains.
func newSpoofChain(name string) nft.Message {
	if name != spoofHook {
		return nft.NewChain(spoofTable(), name, nil, "")
	}
	hook := nft.Hook{Type: "filter", Number: 0, Priority: -300, Accept: true} // NF_BR_PRE_ROUTING, <linux/netfilter_bridge.h>
	return nft.NewChain(spoofTable(), name, &hook, "")
}

// spoofRule is one of the rules.
type spoofRule struct {
	chain string
	exprs nft.Exprs
}

// rules returns the rules for a port of the bridge, in the order of each chain.
func (s SpoofCheck) rules(port string, mac net.HardwareAddr) []spoofRule {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, port)
	start := nft.Exprs(nil)
	return []spoofRule{
		{spoofHook, start.Meta(unix.NFT_META_IIFNAME, nft.Reg(0)).Equal(name).Jump(s.chain)},
		{s.chain, start.Jump(s.macChain)},
		// The source address is bytes 6 to 11 of a frame.
		{s.macChain, start.Payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, nft.Reg(0)).Equal(mac).Return()},
		{s.macChain, start.Drop()},
	}
}

// Remove deletes the rules and chains that exist.
func (s SpoofCheck) Remove(ctx context.Context) error {
	return s.sockets.Do(ctx, func(c *nft.Conn) error { return removeFound(ctx, c, s.search(spoofHook)) })
}
