package reference

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// The tables of iptables, and the chains that the plugins portmap and firewall
// create for all containers.
const (
	tableNAT    = "nat"
	tableFilter = "filter"

	chainForward  = "CNI-FORWARD"
	chainStage1   = "CNI-ISOLATION-STAGE-1"
	chainStage2   = "CNI-ISOLATION-STAGE-2"
	chainHostPort = "CNI-HOSTPORT-DNAT"
	chainMasq     = "CNI-HOSTPORT-MASQ"
)

func inTable(table, chain string) iptables.ChainID {
	return iptables.ChainID{Table: table, Chain: chain}
}

// footprint describes all rules of one attachment in iptables. A chain, a comment or an
// address decides, and is compared whole.
type footprint struct{ fwrules.Target }

// forward returns the addresses of a family whose rules of CNI-FORWARD are the
// attachment's.
func (f footprint) forward(v6 bool) (addrs []netip.Addr) {
	for _, a := range f.Addresses {
		if a.Is6() == v6 && !slices.Contains(f.InUse, a) && !slices.Contains(f.Siblings, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// relevant returns the chains of a family that can have rules of f. If none of them
// exists, there are no such rules.
func (f footprint) relevant(v6 bool) (ids []iptables.ChainID) {
	for _, c := range f.Chains() {
		ids = append(ids, inTable(tableNAT, c.Name))
	}
	if len(f.forward(v6)) > 0 {
		ids = append(ids, inTable(tableFilter, chainForward))
	}
	return ids
}

// concerns reports whether a line of iptables-save can be about f. Parsing the
// rules of all containers would take longest.
func (f footprint) concerns(line string) bool {
	return !strings.HasPrefix(line, "-A ") ||
		slices.ContainsFunc(f.Chains(), func(c fwrules.Chain) bool { return strings.Contains(line, c.Name) }) ||
		slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool { return strings.Contains(line, a.String()) })
}

// owned reports whether a rule of the container's chain in one family, or a jump to it, is
// one of the attachment's whose rules these are: by an address, a subnet, or a port.
func owned(by fwrules.Rules, v6 bool, r iptables.Rule) bool {
	for _, m := range by.Masquerade {
		for _, p := range m.Addresses {
			p, err := fwrules.PlainPrefix(p)
			if err != nil || p.Addr().Is6() != v6 {
				continue
			}
			if r.About([]netip.Addr{p.Addr()}) || r.Has("-d", p.Masked().String()) || r.Has("-j", "MASQUERADE") {
				return true
			}
		}
	}
	for _, h := range by.HostPorts {
		if v6 && !h.V6.IsValid() || !v6 && !h.V4.IsValid() {
			continue
		}
		if slices.ContainsFunc(h.Ports, func(p fwrules.HostPort) bool { return names(r, p) }) {
			return true
		}
	}
	return false
}

// names reports whether a rule is about a port of the host.
func names(r iptables.Rule, p fwrules.HostPort) bool {
	port := strconv.Itoa(int(p.HostPort))
	if !r.Has("-p", p.Protocol) {
		return false
	}
	return r.Has("--dport", port) || slices.Contains(strings.Split(r.Value("--dports"), ","), port)
}
