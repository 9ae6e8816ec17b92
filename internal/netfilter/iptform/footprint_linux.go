package iptform

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// footprint describes the rules of one attachment in iptables. DEL describes the
// rules of one or several plugins, and the sweep describes all of them. A chain, a
// comment or an address decides, and is compared whole.
type footprint struct {
	fwrules.Target
	masquerade bool         // the chain CNI-<hash>
	hostPorts  bool         // CNI-DN-<hash>, and CNI-SN-<hash> from before v0.7
	forward    []netip.Addr // those whose rules of CNI-FORWARD are the attachment's
	// lookBeside looks for other interfaces in the rules, as DEL does: it may not
	// know of them all.
	lookBeside bool
}

// whole describes all rules of the target.
func whole(t fwrules.Target) (footprint, error) {
	others := slices.Concat(t.InUse, t.Siblings)
	mine := slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool { return slices.Contains(others, a) })
	r := t.Everything()
	r.Forward = []fwrules.Forward{{Owner: t.Owner, Addresses: mine}}
	all, err := footprints(r, t)
	if err != nil {
		return footprint{}, err
	}
	return *all[0], nil
}

// footprints describes the rules, by attachment. The target has the facts that they
// do not contain.
func footprints(r fwrules.Rules, t fwrules.Target) ([]*footprint, error) {
	var all []*footprint
	of := func(o fwrules.Owner) *footprint {
		for _, f := range all {
			if f.Owner == o {
				return f
			}
		}
		f := &footprint{Target: t}
		f.Owner, f.Addresses = o, slices.Clip(t.Addresses)
		f.Own.Masquerade, f.Own.HostPorts = slices.Clip(t.Own.Masquerade), slices.Clip(t.Own.HostPorts)
		all = append(all, f)
		return f
	}
	for _, m := range r.Masquerade {
		f := of(m.Owner)
		f.masquerade = true
		f.Own.Masquerade = append(f.Own.Masquerade, m)
		for _, p := range m.Addresses {
			f.Addresses = append(f.Addresses, p.Addr())
		}
	}
	for _, h := range r.HostPorts {
		f := of(h.Owner)
		f.hostPorts = true
		f.Own.HostPorts = append(f.Own.HostPorts, h)
		for _, p := range []netip.Prefix{h.V4, h.V6} {
			if p.IsValid() {
				f.Addresses = append(f.Addresses, p.Addr())
			}
		}
	}
	for _, rule := range r.Forward {
		f := of(rule.Owner)
		for _, a := range rule.Addresses {
			f.forward = append(f.forward, a.Unmap())
		}
		f.Addresses = append(f.Addresses, rule.Addresses...)
	}
	for _, f := range all {
		var err error
		if f.Target, err = f.Normal(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// inFamily reports whether there can be rules of a family. If addresses are known,
// a family without one has no rules.
func (f footprint) inFamily(v6 bool) bool {
	return len(f.Addresses) == 0 || slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })
}

// chains are the container's own chains.
func (f footprint) chains() (chains []fwrules.Chain) {
	own := f.Chains()
	if f.masquerade {
		chains = append(chains, own[0])
	}
	if f.hostPorts {
		chains = append(chains, own[1], own[2])
	}
	return chains
}

// relevant returns the chains of a family that can have rules of f. If none of them
// exists, there are no such rules.
func (f footprint) relevant(v6 bool) (ids []iptables.ChainID) {
	for _, c := range f.chains() {
		ids = append(ids, inTable(tableNAT, c.Name))
	}
	if slices.ContainsFunc(f.forward, func(a netip.Addr) bool { return a.Is6() == v6 }) {
		ids = append(ids, inTable(tableFilter, chainForward))
	}
	if f.LastOnBridge != "" {
		ids = append(ids, inTable(tableFilter, chainStage1), inTable(tableFilter, chainStage2))
	}
	return ids
}

// concerns reports whether a line of iptables-save can be about f. Parsing the
// rules of all containers would take longest.
func (f footprint) concerns(line string) bool {
	return !strings.HasPrefix(line, "-A ") ||
		slices.ContainsFunc(f.chains(), func(c fwrules.Chain) bool { return strings.Contains(line, c.Name) }) ||
		slices.ContainsFunc(f.forward, func(a netip.Addr) bool { return strings.Contains(line, a.String()) }) ||
		f.LastOnBridge != "" && strings.Contains(line, f.LastOnBridge)
}

// divide returns who owns the rules of a chain in one family.
func (f footprint) divide(v6 bool) division {
	return division{own: desiredOf(f.Own, v6), kept: desiredOf(f.Kept, v6), unknown: f.KeptUnknown}
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

// division holds the owners of the rules of a chain that attachments of one container
// share.
type division struct {
	own, kept desired // of the attachment, and of its siblings
	unknown   bool    // a sibling may have more
}

// keeps reports whether siblings have rules in the chain.
func (d division) keeps(chain string) bool {
	return slices.ContainsFunc(d.kept.chains, func(c desiredChain) bool { return c.Chain == chain })
}

// has reports whether a rule of iptables-save is one of w. Conditions of a
// configuration are not recognized.
func (w desired) has(table string, r iptables.Rule) bool {
	return slices.ContainsFunc(w.rules, func(want desiredRule) bool {
		return want.Table == table && want.Chain == r.Chain && r.Is(iptables.Canonical(want.args)...)
	})
}
