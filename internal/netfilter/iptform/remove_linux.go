package iptform

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Remove deletes the rules from all variants.
func (f Form) Remove(ctx context.Context, r fwrules.Rules) error {
	s := f.Siblings()
	all, err := footprints(r, fwrules.Target{Siblings: s.Addresses, Kept: s.Rules, KeptUnknown: s.Unknown})
	if err != nil {
		return err
	}
	for _, one := range all {
		one.lookBeside = true
	}
	var doubt []*footprint
	err = f.Sockets.Do(ctx, func(c *nft.Conn) (err error) {
		doubt, err = removeSure(ctx, c, all)
		return err
	})
	if err != nil && !errors.Is(err, nft.ErrNotSupported) {
		return err
	}
	return f.in(func() error {
		var errs []error
		for _, footprint := range all {
			for _, tool := range f.tools() {
				if tool.legacy && footprint.inFamily(tool.v6) || !tool.legacy && slices.Contains(doubt, footprint) {
					errs = append(errs, removeWith(ctx, tool, *footprint))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// removeWith looks with the tool for all rules of f, and deletes them.
func removeWith(ctx context.Context, t tool, f footprint) error {
	commands, err := t.find(ctx, f)
	if err != nil || len(commands) == 0 {
		return err
	}
	return deletions{t, commands}.apply(ctx)
}

// removeSure removes rules of the nf_tables variant over netlink, without a
// process, for both families and tables in one transaction: each transaction
// would wait for a grace period of the kernel. It leaves and returns the footprints
// with rules that may belong to another attachment.
func removeSure(ctx context.Context, c *nft.Conn, all []*footprint) (doubt []*footprint, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		before, err := c.Generation()
		if err != nil {
			return err
		}
		var objects []nft.Object
		doubt = nil
		for _, f := range all {
			found, sure, err := f.find(c)
			if err != nil {
				return err
			}
			if sure {
				objects = append(objects, found...)
			} else {
				doubt = append(doubt, f)
			}
		}
		if len(objects) == 0 {
			return nil
		}
		err = c.Delete(before, inOrder(objects))
		if err != nil && ctx.Err() == nil && !errors.Is(err, nft.ErrChanged) {
			// Most likely something else refers to one of the chains. The tool
			// deletes all but that chain, and an error names it.
			doubt = all
			return nil
		}
		return err
	})
	return doubt, err
}

// inOrder puts rules before chains, which they may jump to.
func inOrder(objects []nft.Object) []nft.Object {
	isChain := func(o nft.Object) bool { return o.Handle == 0 }
	chains := slices.DeleteFunc(slices.Clone(objects), func(o nft.Object) bool { return !isChain(o) })
	return append(slices.DeleteFunc(objects, isChain), chains...)
}

// find returns the objects of f in the nf_tables variant. sure reports whether
// these are all of them, and certainly f's.
func (f *footprint) find(k *nft.Conn) (objects []nft.Object, sure bool, err error) {
	for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
		found, sure, err := f.findIn(k, family)
		if err != nil || !sure {
			return nil, false, err
		}
		objects = append(objects, found...)
	}
	return objects, true, nil
}

// findIn is find for one family.
func (f *footprint) findIn(k *nft.Conn, family uint8) (objects []nft.Object, sure bool, err error) {
	chains := f.chains()
	asked := make([]nft.Chain, len(chains))
	for i, c := range chains {
		asked[i] = nft.Chain{Table: tableNAT, Name: c.Name}
	}
	_, exist, err := k.Exist(family, asked...)
	if err != nil {
		return nil, false, err
	}
	d := f.divide(family == nft.FamilyIPv6)
	for i, c := range chains {
		if !exist[i] {
			continue
		}
		if d.unknown || d.keeps(c.Name) {
			if d.own.empty() && !d.unknown {
				continue // all of it is a sibling's
			}
			return nil, false, nil
		}
		found, sure, err := f.findOwn(k, family, c)
		if err != nil || !sure {
			return nil, false, err
		}
		objects = append(objects, found...)
	}
	found, sure, err := f.findForward(k, nft.Table{Family: family, Name: tableFilter})
	return append(objects, found...), sure, err
}

// findOwn returns a chain of the container's own and the jumps to it.
func (f *footprint) findOwn(k *nft.Conn, family uint8, chain fwrules.Chain) (objects []nft.Object, sure bool, err error) {
	nat := nft.Table{Family: family, Name: tableNAT}
	sure = true
	err = k.Rules(nat, entrance(chain.Name), [][]byte{iptables.ZeroTerminated(chain.Name)}, func(r nft.Rule) error {
		s := iptables.NFTRuleOf(r)
		if s.To == chain.Name {
			objects = append(objects, s.Object(nat))
			sure = sure && s.MatchComment == chain.Comment && f.owns(family, chain, s)
		}
		return nil
	})
	return append(objects, nft.Object{Table: nat, Chain: chain.Name}), sure, err
}

// owns reports whether a jump to the chain of the masquerading is from one of
// the attachment's addresses; the chain can be that of another interface too.
func (f *footprint) owns(family uint8, chain fwrules.Chain, s iptables.NFTRule) bool {
	if entrance(chain.Name) != "POSTROUTING" || len(f.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool {
		return a.Is6() == (family == nft.FamilyIPv6) && strings.HasPrefix(s.Exprs.String(), iptables.Comparison(a, true).String()+", ")
	})
}

// findForward returns the rules of CNI-FORWARD for the attachment's addresses.
func (f *footprint) findForward(k *nft.Conn, table nft.Table) (objects []nft.Object, sure bool, err error) {
	exact := make(map[string]bool)
	var raw [][]byte
	for _, a := range f.forward {
		if a.Is6() != (table.Family == nft.FamilyIPv6) {
			continue
		}
		raw = append(raw, a.AsSlice())
		exact[iptables.Comparison(a, true).Accept().String()] = true
		exact[iptables.Tracked(iptables.Comparison(a, false)).Accept().String()] = true
	}
	if len(raw) == 0 {
		return nil, true, nil
	}
	sure = true
	err = k.Rules(table, chainForward, raw, func(r nft.Rule) error {
		// Another rule may be one of another version of iptables.
		sure = sure && exact[r.Exprs.String()]
		objects = append(objects, iptables.NFTRuleOf(r).Object(table))
		return nil
	})
	return objects, sure, err
}
