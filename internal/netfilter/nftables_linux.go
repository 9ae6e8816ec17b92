package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// ruleTable is where rules are looked for and deleted: an [nft.Conn].
type ruleTable interface {
	Generation() (uint32, error)
	Exist(family uint8, chains ...nft.Chain) (generation uint32, exist []bool, err error)
	Rules(t nft.Table, chain string, containing [][]byte, each func(nft.Rule) error) error
	Delete(generation uint32, objects []nft.Object) error
}

// nftSearch describes the rules of attachments in a table of the reference
// plugins.
type nftSearch struct {
	table    nft.Table
	own      []string // the container's own chains
	in       []string // the chains with its rules; "" is the whole table
	comments []string // of its rules
	// A rule must have the address, if it is known, and else none of others.
	addr   netip.Addr
	others []netip.Addr
}

func masqueradeSearch(comments ...string) nftSearch {
	return nftSearch{table: nft.Table{Family: nft.FamilyInet, Name: tableMasquerade}, in: []string{chainChecks}, comments: comments}
}

// hostPortSearch describes the rules of portmap, whose comment is the container
// ID, the same for all of the container's networks.
func hostPortSearch(family uint8, id string, addr netip.Addr, others []netip.Addr) nftSearch {
	return nftSearch{
		table: nft.Table{Family: family, Name: tableHostport}, in: []string{chainHostports, chainOldHostports, chainMasquerading},
		comments: []string{id}, addr: addr, others: others,
	}
}

func (s nftSearch) matches(r nft.Rule) bool {
	if !slices.Contains(s.comments, r.Comment) {
		return slices.Contains(s.own, r.Jump())
	}
	if s.addr.IsValid() {
		return hasAddr(s.table.Family, r, []netip.Addr{s.addr})
	}
	return !hasAddr(s.table.Family, r, s.others)
}

// hasAddr reports whether a rule compares with one of the addresses, or loads
// it. nft compares source and destination at once where it can.
func hasAddr(family uint8, r nft.Rule, addrs []netip.Addr) bool {
	if len(addrs) == 0 {
		return false
	}
	size := map[uint8]int{nft.FamilyIPv4: 4, nft.FamilyIPv6: 16}[family]
	for _, value := range r.Values() {
		if size == 0 || len(value)%size != 0 {
			continue
		}
		for one := range slices.Chunk(value, size) {
			if a, ok := netip.AddrFromSlice(one); ok && slices.Contains(addrs, a) {
				return true
			}
		}
	}
	return false
}

// find returns the rules that exist, and behind them, as they may jump there, the
// container's own chains.
func (s nftSearch) find(k ruleTable) (objects []nft.Object, err error) {
	var containing [][]byte
	for _, name := range slices.Concat(s.comments, s.own) {
		containing = append(containing, []byte(name))
	}
	for _, chain := range s.in {
		err := k.Rules(s.table, chain, containing, func(r nft.Rule) error {
			if o := r.Object(s.table); s.matches(r) && !slices.Contains(objects, o) {
				objects = append(objects, o)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	chains := make([]nft.Chain, len(s.own))
	for i, name := range s.own {
		chains[i] = nft.Chain{Table: s.table.Name, Name: name}
	}
	if len(chains) == 0 {
		return objects, nil
	}
	_, exist, err := k.Exist(s.table.Family, chains...)
	for i, name := range s.own {
		if err == nil && exist[i] {
			objects = append(objects, nft.Object{Table: s.table, Chain: name})
		}
	}
	return objects, err
}

// findSteadily is find at one moment.
func (s nftSearch) findSteadily(ctx context.Context, k ruleTable) (objects []nft.Object, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		before, err := k.Generation()
		if err != nil {
			return err
		}
		if objects, err = s.find(k); err != nil {
			return err
		}
		// A list takes several messages; rules can change between them.
		after, err := k.Generation()
		if err == nil && after != before {
			err = nft.ErrChanged
		}
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: list the rules of table %v: %w", s.table, err)
	}
	return objects, nil
}

// removeFound deletes everything that the searches find, in one transaction.
func removeFound(ctx context.Context, k ruleTable, searches ...nftSearch) error {
	return nft.UntilUnchanged(ctx, func() error {
		generation, err := k.Generation()
		if errors.Is(err, nft.ErrNotSupported) {
			return nil
		}
		if err != nil {
			return wrap(err)
		}
		var objects []nft.Object
		for _, s := range searches {
			found, err := s.find(k)
			if err != nil {
				return wrap(err)
			}
			for _, o := range found {
				if !slices.Contains(objects, o) {
					objects = append(objects, o)
				}
			}
		}
		if len(objects) == 0 {
			return nil
		}
		return wrap(k.Delete(generation, objects))
	})
}

// Find returns the rules of the target that exist, by table.
func (f nftForm) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	searches := append(formSearches(t.Everything(), t.Siblings), newSpoofCheck(f.Sockets, t.ContainerID, t.IfName).search(""))
	err = f.onRules(ctx, func(k ruleTable) error {
		var errs []error
		for _, search := range searches {
			objects, err := search.findSteadily(ctx, k)
			errs = append(errs, err)
			if len(objects) > 0 {
				all = append(all, nftFound{f, search.table, objects})
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	return all, err
}

func (f nftForm) onRules(ctx context.Context, fn func(ruleTable) error) error {
	if f.fake != nil {
		return fn(f.fake)
	}
	return f.Sockets.Do(ctx, func(c *nft.Conn) error { return fn(c) })
}

// nftFound are rules and chains of a target in one table.
type nftFound struct {
	form    nftForm
	table   nft.Table
	objects []nft.Object
}

// Lines returns a command of nft's for each.
func (w nftFound) Lines() []string {
	var lines []string
	for _, o := range w.objects {
		lines = append(lines, "nft "+o.String())
	}
	return lines
}

// Apply deletes the objects in one transaction, or one by one if that fails.
func (w nftFound) Apply(ctx context.Context) error {
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

// remove deletes those of the objects that exist. Handles mean nothing in a
// table that was deleted and made again, so it looks at the rules first, and
// deletes under the condition that they are still these.
func (w nftFound) remove(ctx context.Context, objects []nft.Object) error {
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
func (w nftFound) left(k ruleTable, objects []nft.Object) (left []nft.Object, generation uint32, err error) {
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

// Intact reports whether all of the objects still exist.
func (w nftFound) Intact(ctx context.Context) (yes bool, err error) {
	err = w.form.onRules(ctx, func(k ruleTable) error {
		return nft.UntilUnchanged(ctx, func() error {
			left, _, err := w.left(k, w.objects)
			yes = err == nil && len(left) == len(w.objects)
			return err
		})
	})
	return yes, err
}
