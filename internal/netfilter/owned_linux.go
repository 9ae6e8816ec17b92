package netfilter

import (
	"context"
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
	o := owned{query{tables: []nft.Table{table}, keys: portKeys(ports), addrs: addrs}, make(map[string]bool)}
	for _, owner := range owners {
		o.comments[owner.Comment()] = true
	}
	if spoof || whole {
		o.tables, o.whole = tables(), []nft.Table{bridgeTable}
	}
	if whole {
		o.whole = tables()
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
	return fmt.Sprintf("delete %v # %q", elementText{Set: e.Set, Key: e.Key}, e.Comment)
}

// Deletion returns the message that deletes the element.
func (e ownedElement) Deletion() nft.Message {
	return nft.DeleteElement(tableOf(e.Set), element(e)).About(elementText(e))
}

// findElements returns the target's elements that exist.
func (fw *Firewalls) findElements(ctx context.Context, t Target) ([]found, error) {
	o := ownedBy([]Owner{t.Owner}, t.Addresses, t.Ports, true, t.Thorough || len(t.Addresses) == 0)
	return fw.findObjects(ctx, o.find)
}
