package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// native is the writer for [Native].
type native struct{ *socket }

func (native) over(s *socket) writer { return native{s} }

// add makes the elements in one transaction, without a look before: that none
// is there is part of what the kernel is asked for. What there is in the way is
// looked at only if it refuses.
func (n native) add(ctx context.Context, r Rules) error {
	wanted, err := nativeElements(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	var msgs []message
	for _, e := range wanted {
		msgs = append(msgs, e.add())
	}
	err = n.transact(msgs, nil)
	for range mostChanges {
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		// ENOENT: no table, or no set for that length. EEXIST: an element of an
		// earlier attachment, or the like.
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EEXIST), errors.Is(err, errChanged):
		default:
			return fmt.Errorf("nftables: %w", err)
		}
		var generation uint32
		msgs, generation, err = n.toAdd(wanted)
		switch {
		case errors.Is(err, errChanged):
		case err != nil || len(msgs) == 0:
			return err
		default:
			err = n.transact(msgs, &generation)
		}
	}
	return fmt.Errorf("nftables: add to table %v: %w, %d times: %w", nativeTable, errChanged, mostChanges, err)
}

// toAdd looks at what is there and returns what makes the rest, under the
// condition that the rules are still of that generation.
func (n native) toAdd(wanted []element) ([]message, uint32, error) {
	found, generation, err := n.elements(wanted, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := n.layout()
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	msgs, _ := lay.missing(setsOf(wanted))
	for _, e := range wanted {
		i := slices.IndexFunc(found, func(f element) bool { return f.set == e.set && f.key == e.key })
		switch {
		case i < 0:
		case found[i] == e:
			continue
		case e.port() && found[i].comment != e.comment:
			return nil, 0, fmt.Errorf("%w: there is %v", ErrHostPortTaken, found[i])
		default:
			// An address is given to one attachment at a time, so that what
			// another one has left with it is stale.
			msgs = append(msgs, found[i].delete())
		}
		msgs = append(msgs, e.add())
	}
	return msgs, generation, nil
}

// setsOf returns the sets of the elements, each once.
func setsOf(elements []element) []string {
	var sets []string
	for _, e := range elements {
		if !slices.Contains(sets, e.set) {
			sets = append(sets, e.set)
		}
	}
	return sets
}

// owned is what of the native table belongs to some attachments: elements with
// these comments, of the keys, and of whole sets where keys are not known.
type owned struct {
	comments map[string]bool
	keys     []element
	inSets   func(set string) bool // nil: none
}

// ownedBy tells what remove deletes. Rules that could not have been added have
// nothing.
func ownedBy(r Rules) owned {
	o := owned{comments: make(map[string]bool)}
	searched := make(map[string]bool) // by prefix
	for _, m := range r.Masquerade {
		o.comments[m.comment()] = true
		if elements, err := m.elements(); err == nil {
			o.keys = append(o.keys, elements...)
		}
		if len(m.Addresses) == 0 {
			searched["containers"], searched[subnetsPrefix] = true, true
		}
	}
	for _, h := range r.HostPorts {
		o.comments[h.comment()] = true
		o.keys = append(o.keys, h.keys()...)
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

// keys are those of all elements that there may be for the ports, whether or
// not it is known what they were forwarded to.
func (h HostPorts) keys() (all []element) {
	for _, p := range h.Ports {
		for _, v4 := range []bool{true, false} {
			if e, ok, err := p.key(v4); ok && err == nil {
				all = append(all, e)
			}
		}
	}
	for _, masqAll := range []bool{false, true} {
		h.MasqAll = masqAll
		for _, to := range []netip.Prefix{h.V4, h.V6} {
			if p, err := plainPrefix(to); err == nil {
				all = append(all, h.returning(p)...)
			}
		}
	}
	return all
}

// remove deletes what has the owner's comment: not that of an attachment which
// has been given the same address since.
func (n native) remove(ctx context.Context, r Rules) error {
	o := ownedBy(r)
	if len(o.comments) == 0 {
		return nil
	}
	return o.remove(ctx, n.socket)
}

// elementTable is where elements are looked for and deleted.
type elementTable interface {
	setNames() ([]string, error)
	elements(keys []element, sets []string) ([]element, uint32, error)
	removeElements(generation uint32, elements []element) error
}

// find returns the elements that are there.
func (o owned) find(t elementTable) ([]element, uint32, error) {
	var sets []string
	if o.inSets != nil {
		names, err := t.setNames()
		if err != nil {
			return nil, 0, fmt.Errorf("nftables: list the sets of table %v: %w", nativeTable, err)
		}
		for _, name := range names {
			if _, ok := kindOf(name); ok && o.inSets(name) {
				sets = append(sets, name)
			}
		}
	}
	keys := slices.DeleteFunc(slices.Clone(o.keys), func(k element) bool { return slices.Contains(sets, k.set) })
	found, generation, err := t.elements(keys, sets)
	if errors.Is(err, errNoNFTables) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	found = slices.DeleteFunc(found, func(e element) bool { return !o.comments[e.comment] })
	slices.SortFunc(found, element.compare)
	return slices.Compact(found), generation, nil
}

// remove deletes the elements, all or none.
func (o owned) remove(ctx context.Context, t elementTable) error {
	for range mostChanges {
		found, generation, err := o.find(t)
		if err != nil && !errors.Is(err, errChanged) {
			return err
		}
		if err == nil {
			if len(found) == 0 {
				return nil
			}
			err = t.removeElements(generation, found)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errChanged):
			return fmt.Errorf("nftables: delete: %w", err)
		}
	}
	return fmt.Errorf("nftables: delete from table %v: %w, %d times", nativeTable, errChanged, mostChanges)
}

func (s *socket) removeElements(generation uint32, elements []element) error {
	var msgs []message
	for _, e := range elements {
		msgs = append(msgs, e.delete())
	}
	return s.transact(msgs, &generation)
}

// check looks at the elements, and at what makes them matter.
func (n native) check(_ context.Context, r Rules) error {
	wanted, err := nativeElements(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	found, _, err := n.elements(wanted, nil)
	if err != nil {
		return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := n.layout()
	if err != nil {
		return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	if _, err := lay.missing(setsOf(wanted)); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, e := range wanted {
		i := slices.IndexFunc(found, func(f element) bool { return f.set == e.set && f.key == e.key })
		if i < 0 {
			return fmt.Errorf("nftables: %v is missing", e)
		}
		if found[i] != e {
			return fmt.Errorf("nftables: %v is missing, there is %v", e, found[i])
		}
	}
	return nil
}
