package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

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
