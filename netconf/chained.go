package netconf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/store/conflist"
)

// Firewall accepts the packets of the containers where the host's firewall forwards them.
type Firewall struct {
	// Backend is "iptables", "firewalld", or empty to find out on the host.
	Backend string `cni:"backend"`
	// AdminChain is the chain of iptables in which the administrator's rules are, before
	// the plugin's; empty is CNI-ADMIN.
	AdminChain string `cni:"iptablesAdminChainName"`
	// IngressPolicy is "open", "same-bridge" or "isolated"; empty is "open". The others
	// need a Bridge: containers on other bridges, or all others, cannot connect.
	IngressPolicy string `cni:"ingressPolicy"`
	// Extra are further fields.
	Extra map[string]any
}

// longestChain is a chain's longest name, in bytes (<linux/netfilter/x_tables.h>).
const longestChain = 28

func (f Firewall) render(n Network) (any, error) {
	var o object
	o.set("type", conflist.Firewall)
	o.fields(f)
	var errs []error
	if !slices.Contains([]string{"", "iptables", "firewalld"}, f.Backend) {
		errs = append(errs, fmt.Errorf(`field Backend is %q: it must be "iptables" or "firewalld"`, f.Backend))
	}
	if c := f.AdminChain; len(c) > longestChain || strings.HasPrefix(c, "-") || strings.HasPrefix(c, "!") || strings.ContainsAny(c, " \t\n\v\f\r\x00\"'\\") {
		errs = append(errs, fmt.Errorf("field AdminChain is %q, which is no name of a chain", c))
	}
	if !slices.Contains([]string{"", "open", "same-bridge", "isolated"}, f.IngressPolicy) {
		errs = append(errs, fmt.Errorf(`field IngressPolicy is %q: it must be "open", "same-bridge" or "isolated"`, f.IngressPolicy))
	}
	if f.IngressPolicy != "" && f.IngressPolicy != "open" && slices.ContainsFunc(n.Plugins, func(p Plugin) bool { _, ok := p.(PTP); return ok }) {
		errs = append(errs, fmt.Errorf("field IngressPolicy is %q: it needs a Bridge", f.IngressPolicy))
	}
	return o, wrap(conflist.Firewall, append(errs, o.extend(f.Extra))...)
}

// PortMap forwards ports of the host to the container, those that each Setup names.
type PortMap struct {
	// Extra are the fields: backend, snat, masqAll and others.
	Extra map[string]any
}

func (p PortMap) render(Network) (any, error) { return chained(conflist.Portmap, p.Extra) }

// Bandwidth limits the traffic of each container, as each Setup says.
type Bandwidth struct {
	// Extra are the fields: ingressRate, ingressBurst, egressRate and egressBurst are every
	// container's.
	Extra map[string]any
}

func (b Bandwidth) render(Network) (any, error) { return chained(conflist.Bandwidth, b.Extra) }

// Tuning sets sysctls of the container's namespace, and attributes of its interface.
type Tuning struct {
	// Extra are the fields: sysctl, mac, mtu, promisc and others.
	Extra map[string]any
}

func (t Tuning) render(Network) (any, error) { return chained(conflist.Tuning, t.Extra) }

// chained is a plugin that has no fields of its own.
func chained(typ string, extra map[string]any) (any, error) {
	var o object
	o.set("type", typ)
	o.declare(extra, typ)
	return o, wrap(typ, o.extend(extra))
}
