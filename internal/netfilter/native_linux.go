package netfilter

import (
	"context"
	"errors"
	"fmt"
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
		msgs, generation, err = n.toAdd(ctx, wanted)
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
func (n native) toAdd(ctx context.Context, wanted []element) ([]message, uint32, error) {
	found, generation, err := n.elements(ctx, wanted, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := n.layout(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	msgs, _ := lay.missing(setsOf(wanted))
	for _, e := range wanted {
		i := slices.IndexFunc(found, func(f element) bool { return f.set == e.set && f.key == e.key })
		switch {
		case i < 0:
		case found[i] == e, e.port() && siblingsOf(ctx).have(found[i].comment):
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

// check looks at the elements, and at what makes them matter.
func (n native) check(ctx context.Context, r Rules) error {
	wanted, err := nativeElements(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	return untilUnchanged(ctx, func() error { return n.checkElements(ctx, wanted) })
}

// untilUnchanged repeats fn while it fails because others change the rules.
func untilUnchanged(ctx context.Context, fn func() error) (err error) {
	for range mostChanges {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err = fn(); !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("%w, %d times", err, mostChanges)
}

func (n native) checkElements(ctx context.Context, wanted []element) error {
	found, _, err := n.elements(ctx, wanted, nil)
	if err != nil {
		return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := n.layout(ctx)
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
		if found[i] != e && !(e.port() && siblingsOf(ctx).have(found[i].comment)) {
			return fmt.Errorf("nftables: %v is missing, there is %v", e, found[i])
		}
	}
	return nil
}
