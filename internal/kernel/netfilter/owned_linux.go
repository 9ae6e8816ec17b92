package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// owned are the elements of some attachments: those with the comments, among the elements
// that the query asks for.
type owned struct {
	query
	comments map[string]bool
}

// ownedBy describes the elements of the rules. It looks at all elements if the addresses of a
// rule are not known, and at all of the table for bridges for a check of the MAC address,
// since the interface on the bridge is not known. A rule that cannot be added has none.
func ownedBy(rules []Rule) owned {
	o := owned{query{tables: []nft.Table{table}}, make(map[string]bool)}
	for _, r := range rules {
		o.comments[r.Comment()] = true
		known := false
		for _, p := range r.Addresses {
			p, err := PlainPrefix(p)
			if known = known || err == nil; err == nil && !slices.Contains(o.addrs, p.Addr()) {
				o.addrs = append(o.addrs, p.Addr())
			}
		}
		switch r.Kind {
		case Spoof:
			o.tables, o.whole = tables(), append(o.whole, bridgeTable)
		case Masquerade, Publish:
			if o.keys = append(o.keys, portKeys(r.Port)...); !known {
				o.tables, o.whole = tables(), tables()
			}
		}
	}
	return o
}

// portKeys returns the keys of all elements that a port may have, whether or not the
// address that it was forwarded to is known.
func portKeys(p HostPort) (all []element) {
	for _, v4 := range []bool{true, false} {
		if e, ok, err := portKey(p, v4); ok && err == nil {
			all = append(all, e)
		}
	}
	return all
}

// find returns the elements that are there, in order.
func (o owned) find(c *nft.Conn) (objects []object, err error) {
	s, err := o.read(c)
	if err != nil {
		return nil, err
	}
	var elements []element
	for _, e := range s.elements {
		if o.comments[e.Comment] {
			elements = append(elements, e)
		}
	}
	slices.SortFunc(elements, compareElements)
	for _, e := range elements {
		objects = append(objects, ownedElement(e))
	}
	return objects, nil
}

// ownedElement is an element as an object.
type ownedElement element

func (e ownedElement) String() string {
	return fmt.Sprintf("delete %v # %q", elementText(keyOf(element(e))), e.Comment)
}

// Deletion returns the message that deletes the element.
func (e ownedElement) Deletion() nft.Message {
	return nft.DeleteElement(tableOf(e.Set), element(e)).About(elementText(e))
}

// findElements returns the target's elements that exist.
func (fw *Firewalls) findElements(ctx context.Context, t Target) ([]found, error) {
	var addrs []netip.Prefix
	for _, a := range t.Addresses {
		if !t.Thorough {
			addrs = append(addrs, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	rules := []Rule{{Owner: t.Owner, Kind: Spoof}, {Owner: t.Owner, Kind: Masquerade, Addresses: addrs}}
	for _, p := range t.Ports {
		rules = append(rules, Rule{Owner: t.Owner, Kind: Publish, Addresses: addrs, Port: p})
	}
	return removal{fw.sockets, ownedBy(rules).find}.plan(ctx)
}
