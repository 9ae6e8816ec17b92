package netfilter

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/nft"
)

// belonging is what of one attachment is to be removed.
type belonging struct {
	target     Target
	masquerade bool // the chain CNI-<hash>
	hostPorts  bool // CNI-DN-<hash>, and CNI-SN-<hash> from before v0.7
	forward    []netip.Addr

	own      Rules
	siblings Siblings
}

// belongings sorts rules by attachment.
func belongings(r Rules) []*belonging {
	var all []*belonging
	of := func(o Owner) *belonging {
		for _, b := range all {
			if b.target.Network == o.Network && b.target.ContainerID == o.ContainerID && b.target.IfName == o.IfName {
				return b
			}
		}
		b := &belonging{target: Target{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}}
		all = append(all, b)
		return b
	}
	for _, m := range r.Masquerade {
		b := of(m.Owner)
		b.masquerade = true
		b.own.Masquerade = append(b.own.Masquerade, m)
		for _, p := range m.Addresses {
			b.target.Addresses = append(b.target.Addresses, p.Addr())
		}
	}
	for _, h := range r.HostPorts {
		b := of(h.Owner)
		b.hostPorts = true
		b.own.HostPorts = append(b.own.HostPorts, h)
		for _, p := range []netip.Prefix{h.V4, h.V6} {
			if p.IsValid() {
				b.target.Addresses = append(b.target.Addresses, p.Addr())
			}
		}
	}
	for _, f := range r.Forward {
		b := of(f.Owner)
		for _, a := range f.Addresses {
			b.forward = append(b.forward, a.Unmap())
		}
		b.target.Addresses = append(b.target.Addresses, f.Addresses...)
	}
	return all
}

// has reports whether there can be something of a family: where addresses are
// known, nothing was made for a family that has none.
func (b *belonging) has(v6 bool) bool {
	return len(b.target.Addresses) == 0 ||
		slices.ContainsFunc(b.target.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })
}

// chains are the container's own chains among what is to be removed.
func (b *belonging) chains() []ownChain {
	own := ownChains(b.target.Network, b.target.ContainerID)
	var chains []ownChain
	if b.masquerade {
		chains = append(chains, own[0])
	}
	if b.hostPorts {
		chains = append(chains, own[1], own[2])
	}
	return chains
}

// entrance is the chain with the jumps to a chain of the container's own.
func entrance(chain string) string {
	switch {
	case strings.HasPrefix(chain, "CNI-DN-"):
		return chainHostPort
	case strings.HasPrefix(chain, "CNI-SN-"):
		return chainOldSNAT
	}
	return "POSTROUTING"
}

func (i iptablesWriter) remove(ctx context.Context, r Rules) error {
	all := belongings(r)
	for _, b := range all {
		t, err := b.target.normal()
		if err != nil {
			return err
		}
		b.target, b.siblings = t, i.fw.siblings()
	}
	var doubt []*belonging
	err := i.fw.onSocket(ctx, func(c *nft.Conn) (err error) {
		doubt, err = removeSure(ctx, c, all)
		return err
	})
	if err != nil && !errors.Is(err, nft.ErrNotSupported) {
		return err
	}
	return i.fw.do(func() error {
		var errs []error
		for _, b := range all {
			for _, family := range []string{"iptables", "ip6tables"} {
				if slices.Contains(doubt, b) {
					errs = append(errs, b.removeWith(ctx, xtables{fw: i.fw, family: family}))
				}
				if legacy := (xtables{fw: i.fw, family: family, legacy: true}); b.has(legacy.v6()) {
					errs = append(errs, b.removeWith(ctx, legacy))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// removeWith looks for all that is there of b with the tool, and deletes it.
func (b *belonging) removeWith(ctx context.Context, x xtables) error {
	var ids []chainID
	for _, c := range b.chains() {
		ids = append(ids, chainID{tableNAT, c.name})
	}
	if slices.ContainsFunc(b.forward, func(a netip.Addr) bool { return a.Is6() == x.v6() }) {
		ids = append(ids, chainID{tableFilter, chainForward})
	}
	if len(ids) == 0 {
		return nil
	}
	sets, err := loadSome(ctx, x, ids, b.concerns)
	if err != nil {
		return err
	}
	var commands []command
	for _, set := range sets {
		switch set.table {
		case tableNAT:
			t := b.target
			found := set.siblings(b)
			t.Siblings = slices.Concat(found, b.siblings.Addresses)
			for _, c := range b.chains() {
				d := divide(b.own, b.siblings, x.v6())
				d.unknown = d.unknown || entrance(c.name) == "POSTROUTING" &&
					slices.ContainsFunc(found, func(a netip.Addr) bool { return !slices.Contains(b.siblings.Addresses, a) })
				commands = append(commands, set.own(c, t, d)...)
			}
		case tableFilter:
			commands = append(commands, set.forwarding(Target{Addresses: b.forward})...)
		}
	}
	if len(commands) == 0 {
		return nil
	}
	return iptablesWork{x, commands}.apply(ctx)
}

// concerns reports whether a line of iptables-save can be about b.
func (b *belonging) concerns(line string) bool {
	if !strings.HasPrefix(line, "-A ") {
		return true
	}
	return slices.ContainsFunc(b.chains(), func(c ownChain) bool { return strings.Contains(line, c.name) }) ||
		slices.ContainsFunc(b.forward, func(a netip.Addr) bool { return strings.Contains(line, a.String()) })
}

// siblings are the addresses of the container's other interfaces on the same
// network, which share its chain. Of who has no known address all is removed.
func (s ruleset) siblings(b *belonging) []netip.Addr {
	var siblings []netip.Addr
	own := ownChains(b.target.Network, b.target.ContainerID)[0]
	if !b.masquerade || len(b.target.Addresses) == 0 {
		return nil
	}
	for _, r := range s.rules {
		if !r.jumpsTo(own.name) || !slices.Contains(r.comments(), own.comment) || len(r.args) < 2 || r.args[0] != "-s" {
			continue
		}
		if a, ok := single(r.args[1]); ok && !slices.Contains(b.target.Addresses, a) {
			siblings = append(siblings, a)
		}
	}
	return siblings
}

// removeSure removes what is in the nf_tables variant over netlink, without a
// process, for both families and tables in one transaction: each transaction
// would wait for a grace period of the kernel. It leaves those of which it finds
// something that may be another's, and returns them.
func removeSure(ctx context.Context, c *nft.Conn, all []*belonging) (doubt []*belonging, err error) {
	err = nft.UntilUnchanged(ctx, func() error {
		before, err := c.Generation()
		if err != nil {
			return err
		}
		var objects []nft.Object
		doubt = nil
		for _, b := range all {
			found, sure, err := b.find(c)
			if err != nil {
				return err
			}
			if sure {
				objects = append(objects, found...)
			} else {
				doubt = append(doubt, b)
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

// find returns what there is of b in the nf_tables variant, and whether that is
// all of it and surely b's.
func (b *belonging) find(k ruleTable) (objects []nft.Object, sure bool, err error) {
	for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
		chains := b.chains()
		asked := make([]nft.Chain, len(chains))
		for i, c := range chains {
			asked[i] = nft.Chain{Table: tableNAT, Name: c.name}
		}
		_, exist, err := k.Exist(family, asked...)
		if err != nil {
			return nil, false, err
		}
		d := divide(b.own, b.siblings, family == nft.FamilyIPv6)
		for i, c := range chains {
			if !exist[i] {
				continue
			}
			if d.unknown || d.keeps(c.name) {
				if d.own.empty() && !d.unknown {
					continue // all of it is a sibling's
				}
				return nil, false, nil
			}
			found, sure, err := b.findOwn(k, family, c)
			if err != nil || !sure {
				return nil, false, err
			}
			objects = append(objects, found...)
		}
		found, sure, err := b.findForward(k, nft.Table{Family: family, Name: tableFilter})
		if err != nil || !sure {
			return nil, false, err
		}
		objects = append(objects, found...)
	}
	return objects, true, nil
}

// findOwn returns a chain of the container's own and the jumps to it.
func (b *belonging) findOwn(k ruleTable, family uint8, chain ownChain) (objects []nft.Object, sure bool, err error) {
	nat := nft.Table{Family: family, Name: tableNAT}
	sure = true
	err = k.Rules(nat, entrance(chain.name), [][]byte{zeroTerminated(chain.name)}, func(r nft.Rule) error {
		s := shapeOf(r)
		if s.jump == chain.name {
			objects = append(objects, s.object(nat))
			sure = sure && s.comment == chain.comment && b.owns(family, chain, s)
		}
		return nil
	})
	return append(objects, nft.Object{Table: nat, Chain: chain.name}), sure, err
}

// owns reports whether a jump to the chain of the masquerading is from one of
// the attachment's addresses; the chain can be that of another interface too.
func (b *belonging) owns(family uint8, chain ownChain, s shape) bool {
	if entrance(chain.name) != "POSTROUTING" || len(b.target.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(b.target.Addresses, func(a netip.Addr) bool {
		return a.Is6() == (family == nft.FamilyIPv6) && strings.HasPrefix(s.Exprs.String(), comparison(a, true).String()+", ")
	})
}

// findForward returns the rules of CNI-FORWARD for the attachment's addresses.
func (b *belonging) findForward(k ruleTable, table nft.Table) (objects []nft.Object, sure bool, err error) {
	exact := make(map[string]bool)
	var raw [][]byte
	for _, a := range b.forward {
		if a.Is6() != (table.Family == nft.FamilyIPv6) {
			continue
		}
		raw = append(raw, a.AsSlice())
		exact[comparison(a, true).Accept().String()] = true
		exact[tracked(comparison(a, false)).Accept().String()] = true
	}
	if len(raw) == 0 {
		return nil, true, nil
	}
	sure = true
	err = k.Rules(table, chainForward, raw, func(r nft.Rule) error {
		// Another rule may be one of another version of iptables.
		sure = sure && exact[r.Exprs.String()]
		objects = append(objects, shapeOf(r).object(table))
		return nil
	})
	return objects, sure, err
}
