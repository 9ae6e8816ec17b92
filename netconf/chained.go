package netconf

import (
	"errors"
	"fmt"
	"maps"
	"math"
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
	// Zone is that of firewalld; empty is "trusted".
	Zone string `cni:"firewalldZone"`
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
	// Backend is "iptables", "nftables", or empty for the plugin's default.
	Backend string `cni:"backend"`
	// WithoutSNAT leaves the source of packets that come from the container itself or from
	// the host's loopback. The plugin's default makes these connections work.
	WithoutSNAT bool
	// MasqueradeAll gives all forwarded packets the host's address as source.
	MasqueradeAll bool `cni:"masqAll"`
	// Extra are further fields.
	Extra map[string]any
}

func (p PortMap) render(Network) (any, error) {
	var o object
	o.set("type", conflist.Portmap)
	o.declare(p.Extra, conflist.Portmap)
	o.fields(p)
	if p.WithoutSNAT {
		o.set("snat", false)
	}
	errs := []error{validateBackend("Backend", p.Backend)}
	if p.WithoutSNAT && p.MasqueradeAll {
		errs = append(errs, errors.New("fields WithoutSNAT and MasqueradeAll exclude each other"))
	}
	return o, wrap(conflist.Portmap, append(errs, o.extend(p.Extra))...)
}

// Bandwidth limits the traffic of each container. Without a rate here, each Setup may set
// its container's; with one, this is every container's.
type Bandwidth struct {
	// Rates are in bits a second, bursts in bits. Ingress is to the container. A rate
	// needs a burst.
	IngressRate  uint64 `cni:"ingressRate"`
	IngressBurst uint64 `cni:"ingressBurst"`
	EgressRate   uint64 `cni:"egressRate"`
	EgressBurst  uint64 `cni:"egressBurst"`
	// Extra are further fields.
	Extra map[string]any
}

func (b Bandwidth) render(Network) (any, error) {
	var o object
	o.set("type", conflist.Bandwidth)
	o.declare(b.Extra, conflist.Bandwidth)
	o.fields(b)
	return o, wrap(conflist.Bandwidth, limit("Ingress", b.IngressRate, b.IngressBurst),
		limit("Egress", b.EgressRate, b.EgressBurst), o.extend(b.Extra))
}

// limit validates a rate and its burst. The kernel counts bytes, and a burst in 32 bits.
func limit(direction string, rate, burst uint64) error {
	switch {
	case (rate == 0) != (burst == 0):
		return fmt.Errorf("%sRate and %sBurst need each other", direction, direction)
	case rate != 0 && rate < 8:
		return fmt.Errorf("%sRate is %d bits a second: it must be 8 at least", direction, rate)
	case burst/8 >= math.MaxUint32:
		return fmt.Errorf("%sBurst is %d bits: it must be less than 4 GiB", direction, burst)
	}
	return nil
}

// Tuning sets sysctls of the container's namespace, and attributes of its interface.
type Tuning struct {
	// Sysctls are below net., in which "IFNAME" stands for the interface.
	Sysctls map[string]string
	// Extra are further fields: mac, mtu, promisc.
	Extra map[string]any
}

func (t Tuning) render(Network) (any, error) {
	var o object
	o.set("type", conflist.Tuning)
	o.declare(t.Extra, conflist.Tuning)
	var errs []error
	if len(t.Sysctls) > 0 {
		o.set("sysctl", t.Sysctls) // a map is rendered in the order of its keys
	}
	for _, key := range slices.Sorted(maps.Keys(t.Sysctls)) {
		if !strings.HasPrefix(key, "net.") && !strings.HasPrefix(key, "net/") {
			errs = append(errs, fmt.Errorf("sysctl %q does not begin with net", key))
		}
	}
	return o, wrap(conflist.Tuning, append(errs, o.extend(t.Extra))...)
}
