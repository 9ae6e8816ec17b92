package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
		b.target, b.siblings = t, siblingsOf(ctx)
	}
	var doubt []*belonging
	err := i.fw.onSocket(ctx, func(s *socket) (err error) {
		doubt, err = s.removeBelongings(ctx, all)
		return err
	})
	if err != nil && !errors.Is(err, errNoNFTables) {
		return err
	}
	return i.fw.do(func() error {
		var errs []error
		for _, b := range all {
			for _, family := range []string{"iptables", "ip6tables"} {
				if slices.Contains(doubt, b) {
					errs = append(errs, b.removeWith(ctx, xtables{family, false}))
				}
				if legacy := (xtables{family, true}); b.has(legacy.v6()) {
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

// removeBelongings removes what is in the nf_tables variant over netlink,
// without a process, and all of it, of both families and of both tables, in one
// transaction: each would wait for a grace period of the kernel's. It returns
// those of which something is there that it is not sure of, and leaves them.
func (s *socket) removeBelongings(ctx context.Context, all []*belonging) ([]*belonging, error) {
	for range mostChanges {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		before, err := s.generation()
		if err != nil {
			return nil, err
		}
		objects, doubt, err := s.findBelongings(all)
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil || len(objects) == 0 {
			return doubt, err
		}
		err = s.remove(ctx, before, inOrder(objects))
		switch {
		case err == nil:
			return doubt, nil
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, errChanged):
			continue
		}
		// Most likely something else refers to one of the chains. What looks
		// for it with the tool deletes all but that, and says what it is.
		return all, nil
	}
	return nil, fmt.Errorf("nftables: delete: %w, %d times", errChanged, mostChanges)
}

// findBelongings returns what there is, and those that it is not sure of.
func (s *socket) findBelongings(all []*belonging) (objects []nftObject, doubt []*belonging, err error) {
	for _, b := range all {
		found, sure, err := b.find(s)
		if err != nil {
			return nil, nil, err
		}
		if sure {
			objects = append(objects, found...)
		} else {
			doubt = append(doubt, b)
		}
	}
	return objects, doubt, nil
}

// inOrder puts rules before chains, which they may jump to.
func inOrder(objects []nftObject) []nftObject {
	slices.SortStableFunc(objects, func(a, b nftObject) int {
		switch {
		case a.handle != 0 && b.handle == 0:
			return -1
		case a.handle == 0 && b.handle != 0:
			return 1
		}
		return 0
	})
	return objects
}

// find returns what there is of b in the nf_tables variant, and whether that is
// all of it and surely b's.
func (b *belonging) find(s *socket) (objects []nftObject, sure bool, err error) {
	for _, family := range []uint8{familyIPv4, familyIPv6} {
		chains := b.chains()
		ids := make([]chainID, len(chains))
		for i, c := range chains {
			ids[i] = chainID{tableNAT, c.name}
		}
		exists, err := s.haveChains(family, ids)
		if err != nil {
			return nil, false, err
		}
		d := divide(b.own, b.siblings, family == familyIPv6)
		for i, c := range chains {
			if !exists[i] {
				continue
			}
			if d.unknown || d.keeps(c.name) {
				if d.own.empty() && !d.unknown {
					continue // all of it is a sibling's
				}
				return nil, false, nil
			}
			found, sure, err := b.findOwn(s, family, c)
			if err != nil || !sure {
				return nil, false, err
			}
			objects = append(objects, found...)
		}
		found, sure, err := b.findForward(s, nftTable{family, tableFilter})
		if err != nil || !sure {
			return nil, false, err
		}
		objects = append(objects, found...)
	}
	return objects, true, nil
}

// findOwn returns a chain of the container's own and the jumps to it.
func (b *belonging) findOwn(s *socket, family uint8, chain ownChain) (objects []nftObject, sure bool, err error) {
	nat, name := nftTable{family, tableNAT}, zeroTerminated(chain.name)
	sure = true
	err = s.dump(rulesOf(nat, entrance(chain.name)), func(data []byte) error {
		if !bytes.Contains(data, name) {
			return nil // most are others', and to decode them would take the longest
		}
		r, err := decodeShape(data)
		if err != nil || r.jump != chain.name {
			return err
		}
		objects = append(objects, nftObject{nat, r.chain, r.handle, r.comment})
		sure = sure && r.comment == chain.comment && b.owns(family, chain, r)
		return nil
	})
	return append(objects, nftObject{table: nat, chain: chain.name}), sure, err
}

// owns reports whether a jump to the chain of the masquerading is from one of
// the attachment's addresses; the chain can be that of another interface too.
func (b *belonging) owns(family uint8, chain ownChain, s shape) bool {
	if entrance(chain.name) != "POSTROUTING" || len(b.target.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(b.target.Addresses, func(a netip.Addr) bool {
		return a.Is6() == (family == familyIPv6) && strings.HasPrefix(s.text(), comparison(a, true)+", ")
	})
}

// findForward returns the rules of CNI-FORWARD for the attachment's addresses.
func (b *belonging) findForward(s *socket, table nftTable) (objects []nftObject, sure bool, err error) {
	exact := make(map[string]bool)
	var raw [][]byte
	for _, a := range b.forward {
		if a.Is6() != (table.family == familyIPv6) {
			continue
		}
		raw = append(raw, a.AsSlice())
		exact[comparison(a, true)+", "+acceptance()] = true
		exact[comparison(a, false)+", "+tracked()+", "+acceptance()] = true
	}
	if len(raw) == 0 {
		return nil, true, nil
	}
	sure = true
	err = s.dump(rulesOf(table, chainForward), func(data []byte) error {
		if !slices.ContainsFunc(raw, func(a []byte) bool { return bytes.Contains(data, a) }) {
			return nil
		}
		r, err := decodeShape(data)
		if err != nil {
			return err
		}
		// Another rule may be one of another version of iptables.
		sure = sure && exact[r.text()]
		objects = append(objects, nftObject{table, r.chain, r.handle, r.comment})
		return nil
	})
	return objects, sure, err
}
