package netfilter

import (
	"context"
	"errors"
	"fmt"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// native is the writer for [fwrules.Native].
type native struct {
	*nft.Conn
	siblings func() fwrules.Siblings
}

// add makes the elements in one transaction, without a look before: the kernel
// adds them only if their keys are free. Only if it refuses, add looks at the
// elements in the way.
func (n native) add(ctx context.Context, r fwrules.Rules) error {
	wanted, err := nativeElements(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	var msgs []nft.Message
	for _, e := range wanted {
		msgs = append(msgs, addElement(e))
	}
	err = n.Transact(msgs, nil)
	if err == nil || !inTheWay(err) {
		return wrapNFT(err)
	}
	return nft.UntilUnchanged(ctx, func() error {
		msgs, generation, err := n.toAdd(wanted)
		if err != nil || len(msgs) == 0 {
			return err
		}
		if err = n.Transact(msgs, &generation); err != nil && inTheWay(err) {
			return fmt.Errorf("nftables: add to table %v: %w: %w", nativeTable, nft.ErrChanged, err)
		}
		return wrapNFT(err)
	})
}

// inTheWay reports whether a look at what exists can help. ENOENT: there is no
// table, or no set for that length. EEXIST: there is an element of an earlier
// attachment, or the like.
func inTheWay(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, nft.ErrChanged)
}

// toAdd returns the messages that make the missing elements, and the generation in
// which they are missing.
func (n native) toAdd(wanted []element) ([]nft.Message, uint32, error) {
	found, generation, err := n.Elements(nativeTable, wanted, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := readLayout(n.Conn)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	msgs, _ := lay.missing(setsOf(wanted))
	for _, e := range wanted {
		i := sameKey(found, e)
		switch {
		case i < 0:
		case found[i] == e, isPort(e) && n.siblings().Have(found[i].Comment):
			continue
		case isPort(e) && found[i].Comment != e.Comment:
			return nil, 0, fmt.Errorf("%w: there is %v", fwrules.ErrHostPortTaken, elementText(found[i]))
		default:
			// An address is given to one attachment at a time, so that what
			// another one has left with it is stale.
			msgs = append(msgs, nft.DeleteElement(nativeTable, found[i]).About(elementText(found[i])))
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
	var sets []string
	for _, e := range elements {
		if !slices.Contains(sets, e.Set) {
			sets = append(sets, e.Set)
		}
	}
	return sets
}

// check looks at the elements, and at the rules that use them.
func (n native) check(ctx context.Context, r fwrules.Rules) error {
	wanted, err := nativeElements(r)
	if err != nil || len(wanted) == 0 {
		return err
	}
	return nft.UntilUnchanged(ctx, func() error { return n.checkElements(wanted) })
}

func (n native) checkElements(wanted []element) error {
	found, _, err := n.Elements(nativeTable, wanted, nil)
	if err != nil {
		return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	lay, err := readLayout(n.Conn)
	if err != nil {
		return fmt.Errorf("nftables: look at table %v: %w", nativeTable, err)
	}
	if _, err := lay.missing(setsOf(wanted)); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, e := range wanted {
		i := sameKey(found, e)
		if i < 0 {
			return fmt.Errorf("nftables: %v is missing", elementText(e))
		}
		if found[i] != e && !(isPort(e) && n.siblings().Have(found[i].Comment)) {
			return fmt.Errorf("nftables: %v is missing, there is %v", elementText(e), elementText(found[i]))
		}
	}
	return nil
}
