package reference

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// findNFTables returns the rules of the target in nftables, by table.
func (f Form) findNFTables(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	searches := append(searchesOf(t.Everything(), t.Siblings), NewSpoofCheck(f.Sockets, t.ContainerID, t.IfName).search(""))
	err = f.onRules(ctx, func(k ruleTable) error {
		var errs []error
		for _, search := range searches {
			objects, err := search.findSteadily(ctx, k)
			errs = append(errs, err)
			if len(objects) > 0 {
				all = append(all, listed{f, search.table, objects})
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	return all, err
}

func (f Form) onRules(ctx context.Context, fn func(ruleTable) error) error {
	if f.fake != nil {
		return fn(f.fake)
	}
	return f.Sockets.Do(ctx, func(c *nft.Conn) error { return fn(c) })
}

// listed are rules and chains of a target in one table.
type listed struct {
	form    Form
	table   nft.Table
	objects []nft.Object
}

// Lines returns a command of nft's for each.
func (w listed) Lines() []string {
	var lines []string
	for _, o := range w.objects {
		lines = append(lines, "nft "+o.String())
	}
	return lines
}

// Apply deletes the objects in one transaction, or one by one if that fails.
func (w listed) Apply(ctx context.Context) error {
	err := w.remove(ctx, w.objects)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || len(w.objects) == 1 {
		return err
	}
	var errs []error
	for _, o := range w.objects {
		errs = append(errs, w.remove(ctx, []nft.Object{o}))
	}
	return errors.Join(errs...)
}

// remove deletes those of the objects that exist. Handles mean nothing in a table
// that was deleted and made again, so it looks at the rules first, and deletes only
// if none has changed since.
func (w listed) remove(ctx context.Context, objects []nft.Object) error {
	return w.form.onRules(ctx, func(k ruleTable) error {
		return nft.UntilUnchanged(ctx, func() error {
			left, generation, err := w.left(k, objects)
			if err != nil || len(left) == 0 {
				return err
			}
			err = k.Delete(generation, left)
			switch {
			case err == nil:
				return nil
			case len(left) == 1:
				return fmt.Errorf("nftables: %v: %w", left[0], err)
			}
			return fmt.Errorf("nftables: delete %d rules and chains of table %v: %w", len(left), w.table, err)
		})
	})
}

// left returns those of the objects that exist, and the generation in which they
// were seen.
func (w listed) left(k ruleTable, objects []nft.Object) (left []nft.Object, generation uint32, err error) {
	generation, err = k.Generation()
	there := make(map[nft.Object]bool)
	looked := make(map[string]bool)
	for _, o := range objects {
		switch {
		case err != nil:
		case o.Handle == 0:
			var exist []bool
			_, exist, err = k.Exist(o.Table.Family, nft.Chain{Table: o.Table.Name, Name: o.Chain})
			there[o] = err == nil && exist[0]
		case !looked[o.Chain]:
			looked[o.Chain] = true
			err = k.Rules(w.table, o.Chain, nil, func(r nft.Rule) error {
				there[r.Object(w.table)] = true
				return nil
			})
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("nftables: list the rules of table %v: %w", w.table, err)
	}
	return slices.DeleteFunc(slices.Clone(objects), func(o nft.Object) bool { return !there[o] }), generation, nil
}
