package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// object is a rule, a chain or an element of nf_tables. Equal objects are the same one.
type object interface {
	String() string        // the arguments of nft that delete it: `delete rule ip t c handle 7 # "c1"`
	Deletion() nft.Message // deletes it
}

// removal deletes the objects of a namespace that find returns. It owns how they are found:
// handles mean nothing in a table that was deleted and made again, so that it finds them
// again whenever it deletes.
type removal struct {
	sockets nft.Sockets
	find    func(*nft.Conn) ([]object, error) // those that are there, each before those that it needs
}

// plan returns the objects as one step of a plan. They are deleted in one transaction, or one
// by one if that fails.
func (r removal) plan(ctx context.Context) (all []found, err error) {
	var objects []object
	err = r.do(ctx, func(c *nft.Conn) error {
		return c.Look(ctx, nft.MostChanges, func() (err error) {
			objects, err = r.find(c)
			return err
		})
	})
	if len(objects) == 0 || err != nil {
		return nil, err
	}
	var lines []string
	for _, o := range objects {
		lines = append(lines, "nft "+o.String())
	}
	return []found{{lines, func(ctx context.Context) error {
		err := r.run(ctx, objects...)
		if err == nil || ctx.Err() != nil || len(objects) == 1 {
			return err
		}
		var errs []error
		for _, o := range objects {
			errs = append(errs, r.run(ctx, o))
		}
		return joined.Errors(errs...)
	}}}, nil
}

// run deletes those of the objects that are still there, or all that are there if none are
// named, and only if nothing has changed since it found them.
func (r removal) run(ctx context.Context, which ...object) error {
	return r.do(ctx, func(c *nft.Conn) error {
		return c.Change(ctx, func() (msgs []nft.Message, err error) {
			all, err := r.find(c)
			for _, o := range all {
				if len(which) == 0 || slices.Contains(which, o) {
					msgs = append(msgs, o.Deletion())
				}
			}
			return msgs, err
		})
	})
}

// do runs fn with a Conn. A kernel without nf_tables has no objects.
func (r removal) do(ctx context.Context, fn func(*nft.Conn) error) error {
	err := r.sockets.Do(ctx, fn)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil
	}
	return wrapNFT(err)
}

func wrapNFT(err error) error {
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}
