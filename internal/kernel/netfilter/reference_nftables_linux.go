package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
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
	for _, x := range r.Exprs.List() {
		value := x.Value()
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
func (s search) find(c *nft.Conn) (objects []object, err error) {
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
	if err == nil && len(s.own) > 0 {
		var chains []string
		chains, err = c.Chains(s.table)
		for _, name := range s.own {
			if slices.Contains(chains, name) {
				objects = append(objects, nft.Object{Table: s.table, Chain: name})
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("list the rules of table %v: %w", s.table, err)
	}
	return objects, err
}

// findListed returns the rules of the target in nftables, by table.
func (fw *Firewalls) findListed(ctx context.Context, t Target) (all []found, err error) {
	var errs []error
	for _, s := range searches(t) {
		some, err := removal{fw.sockets, s.find}.plan(ctx)
		all, errs = append(all, some...), append(errs, err)
	}
	return all, joined.Errors(errs...)
}
