package native

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Form adds, checks, finds and deletes rules in the table.
type Form struct {
	Sockets  nft.Sockets
	Siblings func() fwrules.Siblings // called only if they matter
	Displace func() error            // called before Add replaces the element of another attachment
}

// Add makes the elements in one transaction, without a look before: the kernel
// adds them only if their keys are free. Only if it refuses, Add looks at the
// elements in the way.
func (f Form) Add(ctx context.Context, r fwrules.Rules) error {
	return f.Sockets.Do(ctx, func(c *nft.Conn) error { return f.add(ctx, c, r) })
}

func (f Form) add(ctx context.Context, c *nft.Conn, r fwrules.Rules) error {
	wanted, err := elementsOf(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	var msgs []nft.Message
	for _, e := range wanted {
		msgs = append(msgs, addElement(e))
	}
	err = c.Transact(msgs, nil)
	if err == nil || !inTheWay(err) {
		return wrapNFT(err)
	}
	return addMissing(ctx, c, wanted, f.Displace, f.isSiblings)
}

// isSiblings reports whether a comment is that of a sibling of the attachment. Siblings
// share their ports.
func (f Form) isSiblings(_ element, comment string) bool { return f.Siblings().Have(comment) }

// addMissing looks at the table, and adds the missing elements and the missing part of
// the layout. siblings reports whether a comment is that of a sibling of the attachment
// that an element is for. displace is called before an element that differs is replaced;
// if it is nil, none is.
func addMissing(ctx context.Context, c *nft.Conn, wanted []element, displace func() error, siblings func(e element, comment string) bool) error {
	return nft.UntilUnchanged(ctx, func() error {
		msgs, generation, err := toAdd(c, wanted, displace, siblings)
		if err != nil || len(msgs) == 0 {
			return err
		}
		if err = c.Transact(msgs, &generation); err != nil && inTheWay(err) {
			return fmt.Errorf("nftables: add to table %v: %w: %w", table, nft.ErrChanged, err)
		}
		return wrapNFT(err)
	})
}

// inTheWay reports whether a look at the table can help. ENOENT: the table, or a set
// for that length, does not exist. EEXIST: there is an element of an earlier
// attachment, or the like.
func inTheWay(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, nft.ErrChanged)
}

// toAdd returns the messages that make the missing elements, and the generation in
// which they are missing. They replace elements that differ, after a call of displace, or an
// error names the first of these.
func toAdd(c *nft.Conn, wanted []element, displace func() error, siblings func(e element, comment string) bool) ([]nft.Message, uint32, error) {
	generation, err := c.Generation()
	if err != nil {
		return nil, 0, wrapNFT(err)
	}
	found, err := elementsOn(c, wanted, nil)
	if err != nil {
		return nil, 0, wrapNFT(err)
	}
	sets := setsOf(wanted)
	tables := tablesOf(sets)
	lay, err := readLayout(c, tables)
	if err != nil {
		return nil, 0, wrapNFT(err)
	}
	var msgs []nft.Message
	for _, t := range tables {
		missing, _ := lay.missing(t, sets)
		msgs = append(msgs, missing...)
	}
	present := byKey(found)
	for _, e := range wanted {
		there, ok := present[keyOf(e)]
		switch {
		case !ok:
		case there == e, isPort(e) && siblings(e, there.Comment):
			continue
		case isPort(e) && there.Comment != e.Comment:
			return nil, 0, fmt.Errorf("%w: there is %v", fwrules.ErrHostPortTaken, elementText(there))
		case displace == nil:
			return nil, 0, fmt.Errorf("nftables: %w: there is %v", fwrules.ErrInPlace, elementText(there))
		default:
			// The other attachment has left it, or has the same address on a network of
			// its own.
			if tableOf(e.Set) == table {
				if err := displace(); err != nil {
					return nil, 0, err
				}
			}
			msgs = append(msgs, deleteElement(there))
		}
		msgs = append(msgs, addElement(e))
	}
	return msgs, generation, nil
}

func wrapNFT(err error) error {
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// setsOf returns the sets of the elements, each once.
func setsOf(elements []element) []string {
	return eachOnce(elements, func(e element) string { return e.Set })
}

// tablesOf returns the tables of the sets, each once.
func tablesOf(sets []string) []nft.Table { return eachOnce(sets, tableOf) }

// eachOnce returns what of returns for the values, each once, in their order.
func eachOnce[T any, K comparable](all []T, of func(T) K) (found []K) {
	for _, one := range all {
		if k := of(one); !slices.Contains(found, k) {
			found = append(found, k)
		}
	}
	return found
}
