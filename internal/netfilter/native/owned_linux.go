package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// owned describes the elements of some attachments: those with the comments, among
// the elements with the keys, and among whole sets where keys are not known.
type owned struct {
	comments map[string]bool
	keys     []element
	// addrs stand for their keys in the sets of containers, and in each set that is
	// for one length of prefix.
	addrs  []netip.Addr
	inSets func(set string) bool // nil: none
}

// ownedBy describes the elements of the rules. A rule that cannot be added has
// none.
func ownedBy(r fwrules.Rules) owned {
	o := owned{comments: make(map[string]bool)}
	searched := make(map[string]bool) // by prefix
	for _, m := range r.Masquerade {
		o.comments[m.Comment()] = true
		if elements, err := masqueradeElements(m); err == nil {
			o.keys = append(o.keys, elements...)
		}
		if len(m.Addresses) == 0 {
			searched["containers"], searched[subnetsPrefix] = true, true
		}
	}
	for _, h := range r.HostPorts {
		o.comments[h.Comment()] = true
		o.keys = append(o.keys, hostPortKeys(h)...)
		if len(h.Ports) == 0 {
			searched["hostports"], searched["hostips"] = true, true
		}
		if !h.V4.IsValid() && !h.V6.IsValid() {
			searched[hairpinPrefix] = true
		}
	}
	if len(searched) > 0 {
		o.inSets = func(set string) bool {
			prefix, _, _, ok := perLength(set)
			if !ok {
				prefix = set[:len(set)-1]
			}
			return searched[prefix]
		}
	}
	return o
}

// hostPortKeys returns the keys of all elements that the ports may have, whether
// or not the address that they were forwarded to is known.
func hostPortKeys(h fwrules.HostPorts) (all []element) {
	for _, p := range h.Ports {
		for _, v4 := range []bool{true, false} {
			if e, ok, err := portKey(p, v4); ok && err == nil {
				all = append(all, e)
			}
		}
	}
	for _, masqAll := range []bool{false, true} {
		h.MasqAll = masqAll
		for _, to := range []netip.Prefix{h.V4, h.V6} {
			if p, err := fwrules.PlainPrefix(to); err == nil {
				all = append(all, hairpinElements(h, p)...)
			}
		}
	}
	return all
}

// elementTable is where elements are looked for and deleted: an [nft.Conn].
type elementTable interface {
	Sets(t nft.Table) ([]string, error)
	Elements(t nft.Table, keys []element, sets []string) ([]element, uint32, error)
	DeleteElements(t nft.Table, generation uint32, elements []element) error
}

// find returns the elements that are there.
func (o owned) find(t elementTable) ([]element, uint32, error) {
	keys, sets := o.keys, []string(nil)
	if o.inSets != nil || len(o.addrs) > 0 {
		names, err := t.Sets(table)
		if errors.Is(err, nft.ErrNotSupported) {
			return nil, 0, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("nftables: list the sets of table %v: %w", table, err)
		}
		for _, name := range names {
			if _, ok := kindOf(name); ok && o.inSets != nil && o.inSets(name) {
				sets = append(sets, name)
			}
			keys = slices.Concat(keys, o.keysIn(name))
		}
	}
	keys = slices.DeleteFunc(slices.Clone(keys), func(k element) bool { return slices.Contains(sets, k.Set) })
	found, generation, err := t.Elements(table, keys, sets)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", table, err)
	}
	found = slices.DeleteFunc(found, func(e element) bool { return !o.comments[e.Comment] })
	slices.SortFunc(found, compareElements)
	return slices.Compact(found), generation, nil
}

// keysIn returns the keys that the addresses have in a set.
func (o owned) keysIn(set string) (keys []element) {
	prefix, v6, bits, ok := perLength(set)
	for _, a := range o.addrs {
		if set == perFamily("containers", a) {
			keys = append(keys, element{Set: set, Key: keyAddr(a)})
		}
		if !ok || a.Is6() != v6 {
			continue
		}
		keys = append(keys, pairElement(prefix, a, netip.PrefixFrom(a, bits).Masked(), ""))
		if prefix == hairpinPrefix && set == perFamily(prefix, a)+"_8" && !v6 {
			keys = append(keys, pairElement(prefix, a, loopback4(), ""))
		}
	}
	return keys
}

// remove deletes the elements, all or none.
func (o owned) remove(ctx context.Context, t elementTable) error {
	return nft.UntilUnchanged(ctx, func() error {
		found, generation, err := o.find(t)
		if err != nil || len(found) == 0 {
			return err
		}
		if err := t.DeleteElements(table, generation, found); err != nil {
			return fmt.Errorf("nftables: delete from table %v: %w", table, err)
		}
		return nil
	})
}

// ownedByTarget describes all elements of the target.
func ownedByTarget(t fwrules.Target) owned {
	o := ownedBy(t.Everything())
	if !t.Whole() {
		o.addrs, o.inSets = t.Addresses, nil
	}
	return o
}

// search returns the elements that are there.
func (o owned) search(ctx context.Context, t elementTable) (found []element, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		found, _, err = o.find(t)
		return err
	})
	return found, err
}
