package cni

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// The names of the well-known capabilities (CONVENTIONS.md of
// containernetworking/cni, "Well-known Capabilities").
const (
	capIPRanges   = "ipRanges"
	capBandwidth  = "bandwidth"
	capDNS        = "dns"
	capIPs        = "ips"
	capMAC        = "mac"
	capCgroupPath = "cgroupPath"
)

// IPRanges is a range of addresses to allocate from.
type IPRanges struct {
	Subnet     string // for example 10.1.2.0/24
	RangeStart string // first address, optional
	RangeEnd   string // last address, optional
	Gateway    string // optional
}

// BandWidth limits a container's traffic. Rates are in bits per second, bursts in
// bits; ingress is traffic to the container. Zero means no limit.
type BandWidth struct {
	IngressRate  uint64
	IngressBurst uint64
	EgressRate   uint64
	EgressBurst  uint64
}

// DNS is a resolver configuration for a plugin to apply.
type DNS struct {
	// List of DNS servers of the cluster.
	Servers []string
	// List of DNS search domains of the cluster.
	Searches []string
	// List of DNS options.
	Options []string
}

// WithCapability sets a capability by name. If it is given for several networks, those
// whose plugins do not declare it are attached without it. If none declares it,
// [Runtime.Setup] says so in Result.Ignored and logs a warning; with
// [WithStrictCapabilities] it fails. The same applies to go-cni's options:
// [WithCapabilityPortMap], …IPRanges, …BandWidth, …DNS and …CgroupPath. The others require
// that a network declares the capability: otherwise Setup returns [ErrInvalidArgument]
// before it changes anything.
//
// The value must encode as the JSON that its plugins expect. Values of this package's types
// ([PortMapping], IPRanges, [BandWidth], DNS) are validated and converted as by their own
// options. Well-known capabilities that have no option of their own:
//
//	infinibandGUID  string    "c2:11:22:33:44:55:66:77"
//	deviceID        string    the device to attach, "0000:04:00.5"
//	aliases         []string  names of the container on the network
func WithCapability(name string, capability any) NamespaceOpts {
	return give(func(ns *Namespace) {
		ns.capabilityArgs[name] = capability
		delete(ns.required, name)
	})
}

// requireCapability is WithCapability for the options that go-cni does not have: it is an
// error if no network declares the capability.
func requireCapability(name string, capability any) NamespaceOpts {
	return give(func(ns *Namespace) { ns.capabilityArgs[name], ns.required[name] = capability, true })
}

// WithCapabilityPortMap forwards ports of the host to the container.
func WithCapabilityPortMap(portMapping []PortMapping) NamespaceOpts {
	return WithCapability(engine.CapPortMappings, slices.Clone(portMapping))
}

// WithCapabilityIPRanges allocates one address from each range. To allocate one address
// from several ranges use [WithCapabilityIPRangeSets].
func WithCapabilityIPRanges(ipRanges []IPRanges) NamespaceOpts {
	return WithCapability(capIPRanges, slices.Clone(ipRanges))
}

// WithCapabilityIPRangeSets allocates one address from each set of ranges. The ranges of
// a set are of one family.
func WithCapabilityIPRangeSets(sets [][]IPRanges) NamespaceOpts {
	sets = slices.Clone(sets)
	for i := range sets {
		sets[i] = slices.Clone(sets[i])
	}
	return requireCapability(capIPRanges, sets)
}

// WithCapabilityBandWidth limits the container's traffic.
func WithCapabilityBandWidth(bandWidth BandWidth) NamespaceOpts {
	return WithCapability(capBandwidth, bandWidth)
}

// WithCapabilityDNS passes a resolver configuration.
func WithCapabilityDNS(dns DNS) NamespaceOpts { return WithCapability(capDNS, dns) }

// WithCapabilityCgroupPath passes the path of the container's cgroup.
func WithCapabilityCgroupPath(cgroupPath string) NamespaceOpts {
	return WithCapability(capCgroupPath, cgroupPath)
}

// WithCapabilityIPs requests these addresses, each with or without a prefix
// length: "10.1.2.3" or "2001:db8::3/64".
func WithCapabilityIPs(ips ...string) NamespaceOpts {
	ips = slices.Clone(ips)
	return func(ns *Namespace) error {
		for _, ip := range ips {
			addr, _, _ := strings.Cut(ip, "/")
			_, err := netip.ParseAddr(addr)
			if addr != ip && err == nil {
				_, err = netip.ParsePrefix(ip)
			}
			if err != nil {
				return fmt.Errorf("capability %s: %w: %w", capIPs, err, ErrInvalidArgument)
			}
		}
		return requireCapability(capIPs, ips)(ns)
	}
}

// WithCapabilityMAC requests this hardware address, "c2:11:22:33:44:55".
func WithCapabilityMAC(mac string) NamespaceOpts {
	return func(ns *Namespace) error {
		addr, err := net.ParseMAC(mac)
		if err == nil && len(addr) != 6 {
			err = fmt.Errorf("%q has %d bytes, not 6", mac, len(addr))
		}
		if err != nil {
			return fmt.Errorf("capability %s: %w: %w", capMAC, err, ErrInvalidArgument)
		}
		return requireCapability(capMAC, mac)(ns)
	}
}

type wireRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

type wireBandWidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

type wireDNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// wireCapabilities converts capabilities for plugins. This package's types encode with
// Go's field names, because runtimes persist them so; plugins expect the keys of
// CONVENTIONS.md.
func wireCapabilities(capabilities map[string]any) (map[string]any, error) {
	wire := make(map[string]any, len(capabilities))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capabilities)) {
		value, err := wireCapability(capabilities[name])
		if err != nil {
			errs = append(errs, joined.Errorf("capability %s: %w", name, err))
		}
		wire[name] = value
	}
	if len(errs) > 0 {
		return nil, engine.Join(errs...)
	}
	return wire, nil
}

func wireCapability(value any) (any, error) {
	switch v := value.(type) {
	case []PortMapping:
		return engine.ValidMappings(wireMappings(v))
	case PortMapping:
		return engine.ValidMappings([]engine.Mapping{engine.Mapping(v)})
	case []IPRanges:
		sets := make([][]IPRanges, len(v))
		for i := range v {
			sets[i] = v[i : i+1]
		}
		return wireRanges(sets)
	case [][]IPRanges:
		return wireRanges(v)
	case BandWidth:
		return wireBandWidth(v), nil
	case *BandWidth:
		if v == nil {
			return nil, fmt.Errorf("nil: %w", ErrInvalidArgument)
		}
		return wireBandWidth(*v), nil
	case DNS:
		return wireDNS(v), nil
	case *DNS:
		if v == nil {
			return nil, fmt.Errorf("nil: %w", ErrInvalidArgument)
		}
		return wireDNS(*v), nil
	default:
		return value, nil
	}
}

func wireRanges(sets [][]IPRanges) ([][]wireRange, error) {
	wire := make([][]wireRange, 0, len(sets))
	for _, set := range sets {
		ranges := make([]wireRange, 0, len(set))
		for _, r := range set {
			if _, err := netip.ParsePrefix(r.Subnet); err != nil {
				return nil, fmt.Errorf("subnet: %w: %w", err, ErrInvalidArgument)
			}
			for _, addr := range []string{r.RangeStart, r.RangeEnd, r.Gateway} {
				if addr == "" {
					continue
				}
				if _, err := netip.ParseAddr(addr); err != nil {
					return nil, fmt.Errorf("range of %s: %w: %w", r.Subnet, err, ErrInvalidArgument)
				}
			}
			ranges = append(ranges, wireRange(r))
		}
		wire = append(wire, ranges)
	}
	return wire, nil
}

// undeclared returns the capabilities without effect: no network for which they were meant
// declares them. One that is required is an error.
func (l *loaded) undeclared(ns *Namespace, selected []selection) (ignored []string, err error) {
	// Those of the call are meant for the networks that have no other value.
	ignored, err = l.undeclaredIn(ns.id, &ns.scope, func(name string) (meant []*Network) {
		for _, sel := range selected {
			if _, own := sel.capabilityArgs[name]; !own {
				meant = append(meant, sel.of)
			}
		}
		return meant
	})
	errs := []error{err}
	for i := 0; i < len(selected); {
		// A selection that means several networks of one name stands once for each.
		var meant []*Network
		first := selected[i]
		for ; i < len(selected) && selected[i].index == first.index; i++ {
			meant = append(meant, selected[i].of)
		}
		some, err := l.undeclaredIn(ns.id, &first.scope, func(string) []*Network { return meant })
		ignored, errs = append(ignored, some...), append(errs, err)
	}
	slices.Sort(ignored)
	return slices.Compact(ignored), engine.Join(errs...)
}

// undeclaredIn is undeclared for the options of one scope.
func (l *loaded) undeclaredIn(id record.ID, in *scope, meant func(name string) []*Network) (ignored []string, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(in.capabilityArgs)) {
		networks := meant(name)
		declared := slices.ContainsFunc(networks, func(n *Network) bool { return n.declares(name) })
		if declared || len(networks) == 0 || engine.IsEmpty(in.capabilityArgs[name]) {
			continue
		}
		if l.opts.strictCaps || in.required[name] {
			errs = append(errs, fmt.Errorf("capability %q is declared by no plugin of %s: %s: %w", name, namesOf(networks), advice(networks, name), ErrInvalidArgument))
			continue
		}
		l.loud(name).Warn("capability is declared by no plugin and has no effect", "capability", name, "container", id)
		ignored = append(ignored, name)
	}
	return ignored, engine.Join(errs...)
}

// loud returns the logger for a warning about a capability that a caller has no other sign
// of: slog's default if none was set. That one gets it once until the next Load, because
// some programs give the same capabilities to each container.
func (l *loaded) loud(capability string) *slog.Logger {
	if l.opts.loggerSet {
		return l.opts.Logger
	}
	if _, again := l.warned.LoadOrStore(capability, true); again {
		return l.opts.Logger
	}
	return slog.Default()
}

// namesOf names networks in an error. No capability is for lo, so its network is named
// only if it is the only one.
func namesOf(networks []*Network) string {
	var names, lo []string
	for _, n := range networks {
		name := fmt.Sprintf("network %q", n.conf.Config.Name)
		if len(n.conf.Config.Plugins) == 1 && n.conf.Config.Plugins[0].Network.Type == conflist.Loopback {
			lo = append(lo, name)
			continue
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		names = lo
	}
	return strings.Join(names, ", ")
}

// advice says what to add to a configuration, so that a plugin gets the capability.
func advice(networks []*Network, capability string) string {
	field := fmt.Sprintf(`"capabilities": {%q: true}`, capability)
	for _, n := range networks {
		resolved, _ := conflist.Resolve(n.conf.Config, "")
		for i, p := range n.conf.Config.Plugins {
			of := resolved.Plugins[i].Network
			if conflist.ReadsCapability(of.Type, of.IPAM.Type, capability) {
				return fmt.Sprintf("add %s to plugin %q of network %q", field, p.Network.Type, n.conf.Config.Name)
			}
		}
	}
	switch readers := conflist.ReadersOf(capability); len(readers) {
	case 0:
	case 1:
		return fmt.Sprintf("add %s with %s", readers[0], field)
	default:
		return fmt.Sprintf("add a plugin that reads it (%s) with %s", strings.Join(readers, ", "), field)
	}
	return "add " + field + " to the plugin that reads it"
}
