package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/nft"
)

// owned are the elements of some attachments: those with the comments, among the elements
// that the query asks for.
type owned struct {
	query
	comments map[string]bool
}

// ownedBy describes the elements of owners with these addresses and ports. If whole, it looks
// at all elements: some addresses or ports are not known. If spoof, it looks at all of the
// table for bridges, since the interface on the bridge is not known.
func ownedBy(owners []Owner, addrs []netip.Addr, ports []HostPort, spoof, whole bool) owned {
	o := owned{query{tables: []nft.Table{table}, keys: portKeys(ports)}, make(map[string]bool)}
	for _, owner := range owners {
		o.comments[owner.Comment()] = true
	}
	if spoof || whole {
		o.tables = tables()
	}
	o.more = func(name string) ([]element, bool) {
		_, ours := setOf(name)
		return keysIn(name, addrs), ours && (whole || tableOf(name) == bridgeTable)
	}
	return o
}

// ownedByRules describes the elements of the rules. A rule that cannot be added has none.
func ownedByRules(rules []Rule) owned {
	var owners []Owner
	var addrs []netip.Addr
	var ports []HostPort
	spoof, whole := false, false
	for _, r := range rules {
		owners = append(owners, r.Owner)
		known := len(addrs)
		for _, p := range r.Addresses {
			if p, err := PlainPrefix(p); err == nil {
				addrs = append(addrs, p.Addr())
			}
		}
		switch r.Kind {
		case Spoof:
			spoof = true
		case Masquerade, Publish:
			ports, whole = append(ports, r.Port), whole || len(addrs) == known
		}
	}
	return ownedBy(owners, addrs, ports, spoof, whole)
}

// portKeys returns the keys of all elements that the ports may have, whether or not the
// address that they were forwarded to is known.
func portKeys(ports []HostPort) (all []element) {
	for _, p := range ports {
		for _, v4 := range []bool{true, false} {
			if e, ok, err := portKey(p, v4); ok && err == nil {
				all = append(all, e)
			}
		}
	}
	return all
}

// keysIn returns the keys that the addresses have in a set.
func keysIn(set string, addrs []netip.Addr) (keys []element) {
	prefix, v6, bits, ok := perLength(set)
	for _, a := range addrs {
		if set == perFamily("containers", a) {
			keys = append(keys, element{Set: set, Key: keyAddr(a)})
		}
		if !ok || a.Is6() != v6 {
			continue
		}
		one := netip.PrefixFrom(a, a.BitLen())
		keys = append(keys, pairElement(prefix, one, netip.PrefixFrom(a, bits), ""))
		if prefix == hairpinPrefix && set == perFamily(prefix, a)+"_8" && !v6 {
			keys = append(keys, pairElement(prefix, one, loopback4(), ""))
		}
	}
	return keys
}

// find returns the elements that are there, in order, and what deletes them.
func (o owned) find(c *nft.Conn) (found []element, msgs []nft.Message, generation uint32, err error) {
	s, err := o.read(c)
	if err != nil {
		return nil, nil, 0, err
	}
	for _, e := range s.elements {
		if o.comments[e.Comment] {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, compareElements)
	for _, e := range found {
		msgs = append(msgs, deleteElement(e))
	}
	return found, msgs, s.generation, nil
}

// remove deletes the elements, all or none.
func (fw *Firewalls) remove(ctx context.Context, o owned) error {
	return fw.onElements(ctx, func(c *nft.Conn) error {
		return c.Change(ctx, func() ([]nft.Message, uint32, error) {
			_, msgs, generation, err := o.find(c)
			return msgs, generation, err
		})
	})
}

// findElements returns the target's elements that exist.
func (fw *Firewalls) findElements(ctx context.Context, t Target) (all []found, err error) {
	o := ownedBy([]Owner{t.Owner}, t.Addresses, t.Ports, true, t.Thorough || len(t.Addresses) == 0)
	var elements []element
	err = fw.onElements(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() (err error) {
			elements, _, _, err = o.find(c)
			return err
		})
	})
	if len(elements) == 0 {
		return nil, err
	}
	var lines []string
	for _, e := range elements {
		lines = append(lines, fmt.Sprintf("nft delete %v # %q", elementText(element{Set: e.Set, Key: e.Key}), e.Comment))
	}
	// Those are deleted that still have their owner's comment.
	o.query = query{tables: tablesOf(elements), keys: elements}
	return []found{{lines, func(ctx context.Context) error { return fw.remove(ctx, o) }}}, err
}

// onElements runs fn with a Conn. A kernel without nf_tables has no elements.
func (fw *Firewalls) onElements(ctx context.Context, fn func(*nft.Conn) error) error {
	err := fw.sockets.Do(ctx, fn)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil
	}
	return wrapNFT(err)
}
