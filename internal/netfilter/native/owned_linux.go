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

// owned describes the elements of some attachments: those with the comments, among the
// elements with the keys, and among whole sets where keys are not known.
type owned struct {
	comments map[string]bool
	keys     []element
	// addrs stand for their keys in the sets of containers, and in each set that is
	// for one length of prefix.
	addrs []netip.Addr
	spoof bool // the sets of the table for bridges: the interface on the bridge is not known
	whole bool // all sets
}

// ownedBy describes the elements of the rules. A rule that cannot be added has
// none.
func ownedBy(r fwrules.Rules) owned {
	o := owned{comments: make(map[string]bool), spoof: len(r.Spoof) > 0}
	add := func(owner fwrules.Owner, addrs ...netip.Prefix) {
		o.comments[owner.Comment()] = true
		known := false
		for _, p := range addrs {
			if p, err := fwrules.PlainPrefix(p); err == nil {
				o.addrs, known = append(o.addrs, p.Addr()), true
			}
		}
		o.whole = o.whole || !known
	}
	for _, m := range r.Masquerade {
		add(m.Owner, m.Addresses...)
	}
	for _, h := range r.HostPorts {
		add(h.Owner, h.V4, h.V6)
		o.keys, o.whole = append(o.keys, portKeys(h.Ports)...), o.whole || len(h.Ports) == 0
	}
	for _, c := range r.Spoof {
		o.comments[c.Comment()] = true
	}
	return o
}

// portKeys returns the keys of all elements that the ports may have, whether or not the
// address that they were forwarded to is known.
func portKeys(ports []fwrules.HostPort) (all []element) {
	for _, p := range ports {
		for _, v4 := range []bool{true, false} {
			if e, ok, err := portKey(p, v4); ok && err == nil {
				all = append(all, e)
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
	for _, t := range tables() {
		if t == bridgeTable && !o.spoof && !o.whole {
			continue
		}
		names, err := c.Sets(t)
		if err != nil {
			return nil, 0, fmt.Errorf("list the sets of table %v: %w", t, err)
		}
		for _, name := range names {
			if _, ok := kindOf(name); ok && (o.whole || t == bridgeTable) {
				sets = append(sets, name)
			}
			keys = slices.Concat(keys, o.keysIn(name))
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
	o.addrs, o.keys, o.spoof = t.Addresses, portKeys(t.Ports), true
	return o
}

// Find returns the target's elements that exist.
func (f Form) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	o := ownedByTarget(t)
	var elements []element
	err = f.onElements(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() (err error) {
			elements, _, err = o.find(c)
			return err
		})
	})
	if len(elements) > 0 {
		all = append(all, Found{f, elements})
	}
	return all, err
}

// Remove deletes the elements with the owners' comments. It leaves those of an
// attachment that has been given the same address since.
func (f Form) Remove(ctx context.Context, r fwrules.Rules) error {
	o := ownedBy(r)
	if len(o.comments) == 0 {
		return nil
	}
	return f.onElements(ctx, func(c *nft.Conn) error { return o.remove(ctx, c) })
}

// onElements runs fn with a Conn. A kernel without nf_tables has no elements.
func (f Form) onElements(ctx context.Context, fn func(*nft.Conn) error) error {
	err := f.Sockets.Do(ctx, fn)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil
	}
	return wrapNFT(err)
}

// Found are elements of a target.
type Found struct {
	form     Form
	elements []element
}

// Lines returns a command of nft's for each element.
func (w Found) Lines() []string {
	var lines []string
	for _, e := range w.elements {
		bare := element{Set: e.Set, Key: e.Key}
		lines = append(lines, fmt.Sprintf("nft delete %v # %q", elementText(bare), e.Comment))
	}
	return lines
}

// Apply deletes those of the elements that still have their owner's comment.
func (w Found) Apply(ctx context.Context) error {
	o := owned{comments: make(map[string]bool), keys: w.elements}
	for _, e := range w.elements {
		o.comments[e.Comment] = true
	}
	return w.form.onElements(ctx, func(c *nft.Conn) error { return o.remove(ctx, c) })
}
