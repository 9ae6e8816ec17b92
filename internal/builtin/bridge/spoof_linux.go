package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// spoofCheck holds the rules that drop frames a container sends with another MAC
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

const spoofHook = "PREROUTING"

func spoofTable() nft.Table { return nft.Table{Family: nft.FamilyBridge, Name: "nat"} }

func newSpoofCheck(r *plugin.Request) spoofCheck {
	return spoofCheck{host: r.Host, owner: r.ContainerID + "-" + r.IfName}
}

func (s spoofCheck) chain() string    { return "cni-br-iface-" + s.owner }
func (s spoofCheck) macChain() string { return s.chain() + "-mac" }
func (s spoofCheck) comment() string  { return "macspoofchk-" + s.owner }

// add makes the rules for a port of the bridge, in one transaction.
func (s spoofCheck) add(ctx context.Context, port string, mac net.HardwareAddr) error {
	if len(s.comment()) > nft.LongestComment {
		return invalid(`"macspoofchk": the comment %q of its rules is longer than %d bytes`, s.comment(), nft.LongestComment)
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, port)
	table, start := spoofTable(), nft.Exprs(nil)
	hook := nft.Hook{Type: "filter", Number: 0, Priority: -300, Accept: true} // NF_BR_PRE_ROUTING, <linux/netfilter_bridge.h>
	msgs := []nft.Message{nft.NewTable(table, ""), nft.NewChain(table, spoofHook, &hook, "")}
	for _, chain := range []string{s.chain(), s.macChain()} {
		// Rules in it are of an attachment that was not deleted.
		msgs = append(msgs, nft.NewChain(table, chain, nil, ""), nft.FlushChain(table, chain))
	}
	msgs = append(msgs,
		nft.NewRule(table, spoofHook, start.Meta(unix.NFT_META_IIFNAME, nft.Reg(0)).Equal(name).Jump(s.chain()), s.comment()),
		nft.NewRule(table, s.chain(), start.Jump(s.macChain()), s.comment()),
		// The source address is bytes 6 to 11 of a frame.
		nft.NewRule(table, s.macChain(), start.Payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 6, nft.Reg(0)).Equal(mac).Return(), s.comment()),
		nft.NewRule(table, s.macChain(), start.Drop(), s.comment()),
	)
	return s.do(ctx, func(c *nft.Conn) error { return c.Transact(msgs, nil) })
}

// remove deletes the rules, which is fine if they are gone.
func (s spoofCheck) remove(ctx context.Context) error {
	return s.do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			generation, err := c.Generation()
			if errors.Is(err, nft.ErrNotSupported) {
				return nil
			}
			if err != nil {
				return err
			}
			objects, err := s.find(c)
			if err != nil || len(objects) == 0 {
				return err
			}
			return c.Delete(generation, objects)
		})
	})
}

// find returns the jump to the container's chains, and them, if they exist.
func (s spoofCheck) find(c *nft.Conn) ([]nft.Object, error) {
	objects, err := s.rules(c, spoofHook)
	if err != nil {
		return nil, err
	}
	chains := []string{s.chain(), s.macChain()} // one jumps to the other
	_, exist, err := c.Exist(nft.FamilyBridge, nft.Chain{Table: spoofTable().Name, Name: chains[0]}, nft.Chain{Table: spoofTable().Name, Name: chains[1]})
	for i, chain := range chains {
		if err == nil && exist[i] {
			objects = append(objects, nft.Object{Table: spoofTable(), Chain: chain})
		}
	}
	return objects, err
}

// check returns an error that names the chain in which rules are missing.
func (s spoofCheck) check(ctx context.Context) error {
	return s.do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			for _, in := range []struct {
				chain string
				want  int
			}{{s.chain(), 1}, {s.macChain(), 2}, {spoofHook, 1}} {
				rules, err := s.rules(c, in.chain)
				if err != nil {
					return err
				}
				if len(rules) < in.want {
					return fmt.Errorf("chain %q of table bridge nat has %d rules with the comment %q, not %d",
						in.chain, len(rules), s.comment(), in.want)
				}
			}
			return nil
		})
	})
}

// rules returns the rules of a chain that have the attachment's comment.
func (s spoofCheck) rules(c *nft.Conn, chain string) (rules []nft.Object, err error) {
	err = c.Rules(spoofTable(), chain, [][]byte{[]byte(s.comment())}, func(r nft.Rule) error {
		if r.Comment == s.comment() {
			rules = append(rules, r.Object(spoofTable()))
		}
		return nil
	})
	return rules, err
}

// do calls fn with a socket, and names the field of the configuration in its
// error.
func (s spoofCheck) do(ctx context.Context, fn func(*nft.Conn) error) error {
	err := context.Cause(ctx)
	if err == nil {
		err = caller.Netfilter(ctx).Sockets.Do(s.host, fn)
	}
	if err != nil {
		return fmt.Errorf(`"macspoofchk": %w`, err)
	}
	return nil
}
