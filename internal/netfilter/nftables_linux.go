package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// nftables is the kernel's nf_tables.
type nftables interface {
	// list returns the rules of a table and which of the chains it has, at one
	// moment. There is nothing in a table that does not exist.
	list(ctx context.Context, table nftTable, chains []string) (nftContent, error)

	// remove deletes the objects, all or none. It fails with errChanged if the
	// generation is no longer this one.
	remove(ctx context.Context, generation uint32, objects []nftObject) error

	elementTable
}

// errChanged means that someone has changed the rules of the namespace since
// they were listed.
var errChanged = errors.New("the rules have changed meanwhile")

// nftTable is a table; family is an NFPROTO number.
type nftTable struct {
	family uint8
	name   string
}

// The families; the numbers are those of linux/netfilter.h.
const (
	familyInet   uint8 = 1
	familyIPv4   uint8 = 2
	familyBridge uint8 = 7
	familyIPv6   uint8 = 10
)

func (t nftTable) String() string {
	family := "inet"
	switch t.family {
	case familyIPv4:
		family = "ip"
	case familyBridge:
		family = "bridge"
	case familyIPv6:
		family = "ip6"
	}
	return family + " " + t.name
}

// nftContent is what a table holds. Each change of whatever table in the
// namespace makes another generation.
type nftContent struct {
	generation uint32
	chains     []string
	rules      []nftRule
}

// nftRule is what is looked at of a rule.
type nftRule struct {
	chain   string
	handle  uint64 // never given to another rule of the table
	comment string
	jump    string       // the chain it jumps or goes to
	addrs   []netip.Addr // what it compares with or loads, as far as it can be an address
}

// nftObject is a rule, or a chain with what is in it if handle is 0.
type nftObject struct {
	table   nftTable
	chain   string
	handle  uint64
	comment string
}

func (o nftObject) String() string {
	if o.handle == 0 {
		return fmt.Sprintf("delete chain %v %s", o.table, o.chain)
	}
	return fmt.Sprintf("delete rule %v %s handle %d # %q", o.table, o.chain, o.handle, o.comment)
}

// nftablesWork is what is to be deleted from one table.
type nftablesWork struct {
	nft     nftables
	table   nftTable
	objects []nftObject
}

func (w nftablesWork) lines() []string {
	var lines []string
	for _, o := range w.objects {
		lines = append(lines, "nft "+o.String())
	}
	return lines
}

// nftSearch is where to look in nftables, and what for.
type nftSearch struct {
	table  nftTable
	chains []string // the container's own
	in     []string // the chains whose rules are looked at; nil means all
	mine   func(nftRule) bool
}

func nftSearches(t Target) []nftSearch {
	masquerade := masqueradeComment(t.Network, t.IfName, t.ContainerID)
	spoof, spoofChains := spoofNames(t.ContainerID, t.IfName)
	// portmap's comment is the id, whichever the network.
	hostport := func(r nftRule) bool {
		return r.comment == t.ContainerID &&
			!slices.ContainsFunc(t.Siblings, func(a netip.Addr) bool { return slices.Contains(r.addrs, a) })
	}
	hostports := []string{"hostports", "hostip_hostports", "masquerading"}
	return []nftSearch{
		{
			table: nftTable{familyInet, "cni_plugins_masquerade"}, in: []string{"masq_checks"},
			mine: func(r nftRule) bool { return r.comment == masquerade },
		},
		{table: nftTable{familyIPv4, "cni_hostport"}, in: hostports, mine: hostport},
		{table: nftTable{familyIPv6, "cni_hostport"}, in: hostports, mine: hostport},
		{
			table: nftTable{familyBridge, "nat"}, chains: spoofChains,
			mine: func(r nftRule) bool { return r.comment == spoof || slices.Contains(spoofChains, r.jump) },
		},
	}
}

// find returns what is to be deleted from the table, if anything: rules first,
// as they may jump to the chains, and those chains' own rules with them.
func (s nftSearch) find(ctx context.Context, nft nftables) ([]nftObject, error) {
	content, err := nft.list(ctx, s.table, s.chains)
	if err != nil {
		return nil, fmt.Errorf("nftables: list the rules of table %v: %w", s.table, err)
	}
	var objects []nftObject
	for _, r := range content.rules {
		if (s.in == nil || slices.Contains(s.in, r.chain)) && s.mine(r) {
			objects = append(objects, nftObject{s.table, r.chain, r.handle, r.comment})
		}
	}
	for _, c := range content.chains {
		objects = append(objects, nftObject{table: s.table, chain: c})
	}
	return objects, nil
}

// apply deletes the objects in one transaction, or one by one what can be.
func (w nftablesWork) apply(ctx context.Context) error {
	err := w.remove(ctx, w.objects)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || len(w.objects) == 1 {
		return err
	}
	var errs []error
	for _, o := range w.objects {
		errs = append(errs, w.remove(ctx, []nftObject{o}))
	}
	return errors.Join(errs...)
}

// mostChanges bounds how often others may change the rules of the namespace
// between a look and the deletion, which is well below a millisecond later.
const mostChanges = 1000

// remove deletes those of the objects that are there. Handles mean nothing in a
// table that was deleted and made again, so it looks at the rules first, and
// deletes under the condition that they are still these.
func (w nftablesWork) remove(ctx context.Context, objects []nftObject) error {
	for range mostChanges {
		left, generation, err := w.left(ctx, objects)
		if err != nil || len(left) == 0 {
			return err
		}
		err = w.nft.remove(ctx, generation, left)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errChanged) || ctx.Err() != nil {
			if len(left) == 1 {
				return fmt.Errorf("nftables: %v: %w", left[0], err)
			}
			return fmt.Errorf("nftables: delete %d rules and chains of table %v: %w", len(left), w.table, err)
		}
	}
	return fmt.Errorf("nftables: delete from table %v: %w, %d times", w.table, errChanged, mostChanges)
}

// left returns those of the objects that are there, and the generation that
// they were seen in.
func (w nftablesWork) left(ctx context.Context, objects []nftObject) ([]nftObject, uint32, error) {
	var chains []string
	for _, o := range objects {
		if o.handle == 0 {
			chains = append(chains, o.chain)
		}
	}
	content, err := w.nft.list(ctx, w.table, chains)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: list the rules of table %v: %w", w.table, err)
	}
	there := make(map[nftObject]bool)
	for _, c := range content.chains {
		there[nftObject{table: w.table, chain: c}] = true
	}
	for _, r := range content.rules {
		there[nftObject{w.table, r.chain, r.handle, r.comment}] = true
	}
	left := slices.DeleteFunc(slices.Clone(objects), func(o nftObject) bool { return !there[o] })
	return left, content.generation, nil
}
