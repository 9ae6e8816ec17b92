package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/nft"
)

// The tables and chains of the plugins in nftables, of pkg/ip/ipmasq_nftables_linux.go,
// portmap_nftables.go and pkg/link/spoofcheck.go.
const (
	chainChecks       = "masq_checks"
	chainHostports    = "hostports"
	chainOldHostports = "hostip_hostports"
	chainAllHostports = "hostports_all"
	chainMasquerading = "masquerading"
	chainSpoof        = "PREROUTING"
)

func masqueradeTable() nft.Table {
	return nft.Table{Family: nft.FamilyInet, Name: "cni_plugins_masquerade"}
}

func hostportTable(family uint8) nft.Table { return nft.Table{Family: family, Name: "cni_hostport"} }

func spoofTable() nft.Table { return nft.Table{Family: nft.FamilyBridge, Name: "nat"} }

// search describes the rules of an attachment in a table of the reference plugins.
type search struct {
	table   nft.Table
	in      []string // the chains with its rules; nil: any
	comment string   // of its rules
	own     []string // the container's own chains
	others  []netip.Addr
}

// searches describes the rules of the target. The comment of portmap's is the container
// ID, the same for all of the container's networks: a rule with an address of a sibling
// is not the target's.
func searches(t Target) []search {
	hostports := []string{chainHostports, chainOldHostports, chainMasquerading}
	spoof, chains := SpoofNames(t.ContainerID, t.IfName)
	return []search{
		{table: masqueradeTable(), in: []string{chainChecks}, comment: t.Comment()},
		{table: hostportTable(nft.FamilyIPv4), in: hostports, comment: t.ContainerID, others: t.Siblings.Addresses},
		{table: hostportTable(nft.FamilyIPv6), in: hostports, comment: t.ContainerID, others: t.Siblings.Addresses},
		{table: spoofTable(), comment: spoof, own: chains},
	}
}

func (s search) matches(r nft.Rule) bool {
	if s.in != nil && !slices.Contains(s.in, r.Chain) {
		return false
	}
	if r.Comment == s.comment {
		return !hasAddr(s.table.Family, r, s.others)
	}
	return slices.Contains(s.own, r.Jump())
}

// hasAddr reports whether a rule compares with one of the addresses, or loads
// it. nft compares source and destination at once where it can.
func hasAddr(family uint8, r nft.Rule, addrs []netip.Addr) bool {
	size := map[uint8]int{nft.FamilyIPv4: 4, nft.FamilyIPv6: 16}[family]
	for _, value := range r.Values() {
		if len(addrs) == 0 || size == 0 || len(value)%size != 0 {
			continue
		}
		for one := range slices.Chunk(value, size) {
			if a, ok := netip.AddrFromSlice(one); ok && slices.Contains(addrs, a) {
				return true
			}
		}
	}
	return false
}

// find returns the rules that exist, and behind them, as they may jump there, the
// container's own chains.
func (s search) find(c *nft.Conn) (objects []nft.Object, err error) {
	var containing [][]byte
	for _, name := range append(s.own, s.comment) {
		containing = append(containing, []byte(name))
	}
	err = c.Rules(s.table, "", containing, func(r nft.Rule) error {
		if s.matches(r) {
			objects = append(objects, r.Object(s.table))
		}
		return nil
	})
	if err != nil || len(s.own) == 0 {
		return objects, err
	}
	chains := make([]nft.Chain, len(s.own))
	for i, name := range s.own {
		chains[i] = nft.Chain{Table: s.table.Name, Chain: name}
	}
	exist, err := c.Exist(s.table.Family, chains...)
	for i, name := range s.own {
		if err == nil && exist[i] {
			objects = append(objects, nft.Object{Table: s.table, Chain: name})
		}
	}
	return objects, err
}

// findListed returns the rules of the target in nftables, by table.
func (fw *Firewalls) findListed(ctx context.Context, t Target) (all []found, err error) {
	err = fw.sockets.Do(ctx, func(c *nft.Conn) error {
		var errs []error
		for _, s := range searches(t) {
			var objects []nft.Object
			err := nft.UntilUnchanged(ctx, func() error {
				return c.InOneGeneration(func(uint32) (err error) {
					objects, err = s.find(c)
					return err
				})
			})
			switch {
			case errors.Is(err, nft.ErrNotSupported):
			case err != nil:
				errs = append(errs, fmt.Errorf("nftables: list the rules of table %v: %w", s.table, err))
			case len(objects) > 0:
				all = append(all, fw.listed(s, objects))
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	return all, err
}

// listed are rules and chains of a target in one table. They are deleted in one transaction,
// or one by one if that fails.
func (fw *Firewalls) listed(s search, objects []nft.Object) found {
	var lines []string
	for _, o := range objects {
		lines = append(lines, "nft "+o.String())
	}
	return found{lines, func(ctx context.Context) error {
		return fw.sockets.Do(ctx, func(c *nft.Conn) error {
			err := s.remove(ctx, c, objects)
			if err == nil || ctx.Err() != nil || len(objects) == 1 {
				return err
			}
			var errs []error
			for _, o := range objects {
				errs = append(errs, s.remove(ctx, c, []nft.Object{o}))
			}
			return errors.Join(errs...)
		})
	}}
}

// remove deletes those of the objects that exist. Handles mean nothing in a table
// that was deleted and made again, so it looks at the rules first, and deletes only
// if none has changed since.
func (s search) remove(ctx context.Context, c *nft.Conn, objects []nft.Object) error {
	return wrapNFT(c.Change(ctx, func() (msgs []nft.Message, generation uint32, err error) {
		if generation, err = c.Generation(); err != nil {
			return nil, 0, err
		}
		all, err := s.find(c)
		for _, o := range all {
			if slices.Contains(objects, o) {
				msgs = append(msgs, o.Deletion())
			}
		}
		return msgs, generation, err
	}))
}
