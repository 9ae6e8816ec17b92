package native

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	inSets map[string]bool // by the name of a set, without family and length
	whole  bool            // all sets
}

// ownedBy describes the elements of the rules. A rule that cannot be added has
// none.
func ownedBy(r fwrules.Rules) owned {
	o := owned{comments: make(map[string]bool), inSets: make(map[string]bool)}
	for _, m := range r.Masquerade {
		o.comments[m.Comment()] = true
		if elements, err := masqueradeElements(m); err == nil {
			o.keys = append(o.keys, elements...)
		}
		if len(m.Addresses) == 0 {
			o.inSets["containers"], o.inSets[subnetsPrefix] = true, true
		}
	}
	for _, h := range r.HostPorts {
		o.comments[h.Comment()] = true
		o.keys = append(o.keys, hostPortKeys(h)...)
		if len(h.Ports) == 0 {
			o.inSets["hostports"], o.inSets["hostips"] = true, true
		}
		if !h.V4.IsValid() && !h.V6.IsValid() {
			o.inSets[hairpinPrefix] = true
		}
	}
	for _, c := range r.Spoof {
		o.comments[c.Comment()] = true
		o.inSets[portsSet], o.inSets[sendersSet] = true, true
	}
	return o
}

// searches reports whether a set is searched as a whole.
func (o owned) searches(set string) bool {
	if prefix, _, _, ok := perLength(set); ok {
		return o.whole || o.inSets[prefix]
	}
	return o.whole || o.inSets[strings.TrimRight(set, "46")]
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

// find returns the elements that are there.
func (o owned) find(c *nft.Conn) ([]element, uint32, error) {
	generation, err := c.Generation()
	if err != nil {
		return nil, 0, err
	}
	keys, sets := o.keys, []string(nil)
	if o.whole || len(o.inSets)+len(o.addrs) > 0 {
		for _, t := range tables() {
			names, err := c.Sets(t)
			if err != nil {
				return nil, 0, fmt.Errorf("list the sets of table %v: %w", t, err)
			}
			for _, name := range names {
				if _, ok := kindOf(name); ok && o.searches(name) {
					sets = append(sets, name)
				}
				keys = slices.Concat(keys, o.keysIn(name))
			}
		}
	}
	keys = slices.DeleteFunc(slices.Clone(keys), func(k element) bool { return slices.Contains(sets, k.Set) })
	found, err := elementsOn(c, keys, sets)
	found = slices.DeleteFunc(found, func(e element) bool { return !o.comments[e.Comment] })
	slices.SortFunc(found, compareElements)
	return slices.Compact(found), generation, err
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
func (o owned) remove(ctx context.Context, c *nft.Conn) error {
	return nft.UntilUnchanged(ctx, func() error {
		found, generation, err := o.find(c)
		if err != nil || len(found) == 0 {
			return err
		}
		var msgs []nft.Message
		for _, e := range found {
			msgs = append(msgs, deleteElement(e))
		}
		return c.Transact(msgs, &generation)
	})
}

// ownedByTarget describes all elements of the target.
func ownedByTarget(t fwrules.Target) owned {
	o := owned{comments: map[string]bool{t.Comment(): true}}
	if o.whole = t.Thorough || len(t.Addresses) == 0; o.whole {
		return o
	}
	o.addrs, o.keys = t.Addresses, hostPortKeys(fwrules.HostPorts{Owner: t.Owner, Ports: t.Ports})
	o.inSets = map[string]bool{portsSet: true, sendersSet: true} // the interface on the bridge is not known
	return o
}

// search returns the elements that are there.
func (o owned) search(ctx context.Context, c *nft.Conn) (found []element, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		found, _, err = o.find(c)
		return err
	})
	return found, err
}
