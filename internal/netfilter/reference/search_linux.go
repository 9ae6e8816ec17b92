package reference

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// ruleTable is where rules are looked for and deleted: an [nft.Conn].
type ruleTable interface {
	Generation() (uint32, error)
	Exist(family uint8, chains ...nft.Chain) (generation uint32, exist []bool, err error)
	Rules(t nft.Table, chain string, containing [][]byte, each func(nft.Rule) error) error
	Delete(generation uint32, objects []nft.Object) error
}

// search describes the rules of attachments in a table of the reference
// plugins.
type search struct {
	table    nft.Table
	own      []string // the container's own chains
	in       []string // the chains with its rules; "" is the whole table
	comments []string // of its rules
	// A rule must contain addr. If addr is not known, it must contain none of others.
	addr   netip.Addr
	others []netip.Addr
}

func masqueradeSearch(comments ...string) search {
	return search{table: nft.Table{Family: nft.FamilyInet, Name: tableMasquerade}, in: []string{chainChecks}, comments: comments}
}

// hostPortSearch describes the rules of portmap, whose comment is the container
// ID, the same for all of the container's networks.
func hostPortSearch(family uint8, id string, addr netip.Addr, others []netip.Addr) search {
	return search{
		table: nft.Table{Family: family, Name: tableHostport}, in: []string{chainHostports, chainOldHostports, chainMasquerading},
		comments: []string{id}, addr: addr, others: others,
	}
}

func (s search) matches(r nft.Rule) bool {
	if !slices.Contains(s.comments, r.Comment) {
		return slices.Contains(s.own, r.Jump())
	}
	if s.addr.IsValid() {
		return hasAddr(s.table.Family, r, []netip.Addr{s.addr})
	}
	return !hasAddr(s.table.Family, r, s.others)
}

// hasAddr reports whether a rule compares with one of the addresses, or loads
// it. nft compares source and destination at once where it can.
func hasAddr(family uint8, r nft.Rule, addrs []netip.Addr) bool {
	if len(addrs) == 0 {
		return false
	}
	size := map[uint8]int{nft.FamilyIPv4: 4, nft.FamilyIPv6: 16}[family]
	for _, value := range r.Values() {
		if size == 0 || len(value)%size != 0 {
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

// searchesOf describes the rules of r. The addresses of others are those of
// siblings, which matter if r's are not known.
func searchesOf(r fwrules.Rules, others []netip.Addr) (all []search) {
	var comments []string
	for _, m := range r.Masquerade {
		comments = append(comments, m.Comment())
	}
	if len(comments) > 0 {
		all = append(all, masqueradeSearch(comments...))
	}
	for _, h := range r.HostPorts {
		v4, v6 := h.V4.Addr().Unmap(), h.V6.Addr()
		if v4.IsValid() || !v6.IsValid() {
			all = append(all, hostPortSearch(nft.FamilyIPv4, h.ContainerID, v4, others))
		}
		if v6.IsValid() || !v4.IsValid() {
			all = append(all, hostPortSearch(nft.FamilyIPv6, h.ContainerID, v6, others))
		}
	}
	return all
}

// find returns the rules that exist, and behind them, as they may jump there, the
// container's own chains.
func (s search) find(k ruleTable) (objects []nft.Object, err error) {
	var containing [][]byte
	for _, name := range slices.Concat(s.comments, s.own) {
		containing = append(containing, []byte(name))
	}
	for _, chain := range s.in {
		err := k.Rules(s.table, chain, containing, func(r nft.Rule) error {
			if o := r.Object(s.table); s.matches(r) && !slices.Contains(objects, o) {
				objects = append(objects, o)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	chains := make([]nft.Chain, len(s.own))
	for i, name := range s.own {
		chains[i] = nft.Chain{Table: s.table.Name, Name: name}
	}
	if len(chains) == 0 {
		return objects, nil
	}
	_, exist, err := k.Exist(s.table.Family, chains...)
	for i, name := range s.own {
		if err == nil && exist[i] {
			objects = append(objects, nft.Object{Table: s.table, Chain: name})
		}
	}
	return objects, err
}

// findSteadily is find in one generation.
func (s search) findSteadily(ctx context.Context, k ruleTable) (objects []nft.Object, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		before, err := k.Generation()
		if err != nil {
			return err
		}
		if objects, err = s.find(k); err != nil {
			return err
		}
		// A list takes several messages; rules can change between them.
		after, err := k.Generation()
		if err == nil && after != before {
			err = nft.ErrChanged
		}
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: list the rules of table %v: %w", s.table, err)
	}
	return objects, nil
}

// removeFound deletes everything that the searches find, in one transaction.
func removeFound(ctx context.Context, k ruleTable, searches ...search) error {
	return nft.UntilUnchanged(ctx, func() error {
		generation, err := k.Generation()
		if errors.Is(err, nft.ErrNotSupported) {
			return nil
		}
		if err != nil {
			return wrap(err)
		}
		var objects []nft.Object
		for _, s := range searches {
			found, err := s.find(k)
			if err != nil {
				return wrap(err)
			}
			for _, o := range found {
				if !slices.Contains(objects, o) {
					objects = append(objects, o)
				}
			}
		}
		if len(objects) == 0 {
			return nil
		}
		return wrap(k.Delete(generation, objects))
	})
}
