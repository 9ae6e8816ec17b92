package netfilter

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// footprint describes the rules of one attachment in iptables, for whoever looks
// for them: DEL, with what one or several plugins made, or the sweep, with
// everything. A chain, a comment or an address decides, and is compared whole.
type footprint struct {
	fwrules.Target
	masquerade bool         // the chain CNI-<hash>
	hostPorts  bool         // CNI-DN-<hash>, and CNI-SN-<hash> from before v0.7
	forward    []netip.Addr // those whose rules of CNI-FORWARD are the attachment's
	// lookBeside looks for other interfaces in the rules, as DEL does: it may not
	// know of them all.
	lookBeside bool
}

// wholeFootprint describes all rules of the target.
func wholeFootprint(t fwrules.Target) footprint {
	others := slices.Concat(t.InUse, t.Siblings)
	forward := slices.DeleteFunc(slices.Clone(t.Addresses), func(a netip.Addr) bool { return slices.Contains(others, a) })
	return footprint{Target: t, masquerade: true, hostPorts: true, forward: forward}
}

// footprints describes the rules, by attachment.
func footprints(r fwrules.Rules, s fwrules.Siblings) ([]*footprint, error) {
	var all []*footprint
	of := func(o fwrules.Owner) *footprint {
		for _, f := range all {
			if f.Owner == o {
				return f
			}
		}
		f := &footprint{Target: fwrules.Target{Owner: o, Kept: s.Rules, KeptUnknown: s.Unknown}, lookBeside: true}
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
		t, err := f.Target.Normal()
		if err != nil {
			return nil, err
		}
		f.Target = t
		f.Siblings = s.Addresses
	}
	return all, nil
}

// inFamily reports whether there can be rules of a family: where addresses are
// known, none were made for a family that has none.
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

// relevant returns the chains without which there is nothing of f in a family.
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
