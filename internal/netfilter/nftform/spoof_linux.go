package nftform

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
	if len(s.comment) > nft.LongestComment {
		return fmt.Errorf("the comment %q of its rules is longer than %d bytes: %w", s.comment, nft.LongestComment, ErrLongComment)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, port)
	table, start := spoofTable(), nft.Exprs(nil)
	hook := nft.Hook{Type: "filter", Number: 0, Priority: -300, Accept: true} // NF_BR_PRE_ROUTING, <linux/netfilter_bridge.h>
	msgs := []nft.Message{nft.NewTable(table, ""), nft.NewChain(table, spoofHook, &hook, "")}
	for _, chain := range []string{s.chain, s.macChain} {
		// Rules in it are of an attachment that was not deleted.
		msgs = append(msgs, nft.NewChain(table, chain, nil, ""), nft.FlushChain(table, chain))
	}
	msgs = append(msgs,
		nft.NewRule(table, spoofHook, start.Meta(unix.NFT_META_IIFNAME, nft.Reg(0)).Equal(name).Jump(s.chain), s.comment),
		nft.NewRule(table, s.chain, start.Jump(s.macChain), s.comment),
		// The source address is bytes 6 to 11 of a frame.
		nft.NewRule(table, s.macChain, start.Payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, nft.Reg(0)).Equal(mac).Return(), s.comment),
		nft.NewRule(table, s.macChain, start.Drop(), s.comment),
	)
	return s.sockets.Do(ctx, func(c *nft.Conn) error { return c.Transact(msgs, nil) })
}

// Remove deletes the rules and chains that exist.
func (s SpoofCheck) Remove(ctx context.Context) error {
	return s.sockets.Do(ctx, func(c *nft.Conn) error { return removeFound(ctx, c, s.search(spoofHook)) })
}

// Check returns an error that names the chain in which rules are missing.
func (s SpoofCheck) Check(ctx context.Context) error {
	return s.sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			for _, in := range []struct {
				chain string
				want  int
			}{{s.chain, 1}, {s.macChain, 2}, {spoofHook, 1}} {
				found := 0
				err := c.Rules(spoofTable(), in.chain, [][]byte{[]byte(s.comment)}, func(r nft.Rule) error {
					if r.Comment == s.comment {
						found++
					}
					return nil
				})
				if err != nil {
					return err
				}
				if found < in.want {
					return fmt.Errorf("chain %q of table bridge nat has %d rules with the comment %q, not %d",
						in.chain, found, s.comment, in.want)
				}
			}
			return nil
		})
	})
}
