package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// object is a rule, a chain or an element of nf_tables. Equal objects are the same one.
type object interface {
	String() string        // the arguments of nft that delete it: `delete rule ip t c handle 7 # "c1"`
	Deletion() nft.Message // deletes it
}

// finder returns objects that are there, each before those that it needs.
type finder func(*nft.Conn) ([]object, error)

// findObjects returns the objects as one step of a plan. They are deleted in one transaction,
// or one by one if that fails.
func (fw *Firewalls) findObjects(ctx context.Context, find finder) (all []found, err error) {
	var objects []object
	err = fw.onNFT(ctx, func(c *nft.Conn) error {
		return c.Look(ctx, nft.MostChanges, func() (err error) {
			objects, err = find(c)
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
		err := fw.delete(ctx, find, objects...)
		if err == nil || ctx.Err() != nil || len(objects) == 1 {
			return err
		}
		var errs []error
		for _, o := range objects {
			errs = append(errs, fw.delete(ctx, find, o))
		}
		return errors.Join(errs...)
	}}}, nil
}

// delete deletes those of the objects that are still there, or all that are there if none are
// named. Handles mean nothing in a table that was deleted and made again, so it looks first,
// and deletes only if nothing has changed since.
func (fw *Firewalls) delete(ctx context.Context, find finder, which ...object) error {
	return fw.onNFT(ctx, func(c *nft.Conn) error {
		return c.Change(ctx, func() (msgs []nft.Message, err error) {
			all, err := find(c)
			for _, o := range all {
				if len(which) == 0 || slices.Contains(which, o) {
					msgs = append(msgs, o.Deletion())
				}
			}
			return msgs, err
		})
	})
}

// onNFT runs fn with a Conn. A kernel without nf_tables has no objects.
func (fw *Firewalls) onNFT(ctx context.Context, fn func(*nft.Conn) error) error {
	err := fw.sockets.Do(ctx, fn)
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
