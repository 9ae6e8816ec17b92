package cni

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// The names of the well-known capabilities (CONVENTIONS.md of
// containernetworking/cni, "Well-known Capabilities").
const (
	capPortMappings   = "portMappings"
	capIPRanges       = "ipRanges"
	capBandwidth      = "bandwidth"
	capDNS            = "dns"
	capIPs            = "ips"
	capMAC            = "mac"
	capInfinibandGUID = "infinibandGUID"
	capDeviceID       = "deviceID"
	capCgroupPath     = "cgroupPath"
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
// whose plugins do not declare it are attached without it. If none declares it, Setup says
// so in Result.Ignored and logs a warning; with WithStrictCapabilities it fails. The same
// applies to go-cni's options: WithCapabilityPortMap, …IPRanges, …BandWidth, …DNS and
// …CgroupPath. The others require that a network declares the capability: otherwise
// Setup returns ErrInvalidArgument before it changes anything.
//
// The value must encode as the JSON that its plugins expect. Values of this package's types (PortMapping, IPRanges, BandWidth,
// DNS) are validated and converted as by their own options.
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
	return WithCapability(capPortMappings, slices.Clone(portMapping))
}

// WithCapabilityIPRanges allocates one address from each range. To allocate one address
// from several ranges use WithCapabilityIPRangeSets.
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
func WithCapabilityMAC(mac string) NamespaceOpts { return hardwareAddress(capMAC, mac, 6) }

// WithCapabilityInfinibandGUID requests this InfiniBand GUID,
// "c2:11:22:33:44:55:66:77".
func WithCapabilityInfinibandGUID(guid string) NamespaceOpts {
	return hardwareAddress(capInfinibandGUID, guid, 8)
}

func hardwareAddress(capability, value string, size int) NamespaceOpts {
	return func(ns *Namespace) error {
		addr, err := net.ParseMAC(value)
		if err == nil && len(addr) != size {
			err = fmt.Errorf("%q has %d bytes, not %d", value, len(addr), size)
		}
		if err != nil {
			return fmt.Errorf("capability %s: %w: %w", capability, err, ErrInvalidArgument)
		}
		return requireCapability(capability, value)(ns)
	}
}

// WithCapabilityDeviceID names the device to attach, for example by its PCI
// address "0000:04:00.5".
func WithCapabilityDeviceID(id string) NamespaceOpts { return requireCapability(capDeviceID, id) }

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
			errs = append(errs, fmt.Errorf("capability %s: %w", name, err))
		}
		wire[name] = value
	}
	if len(errs) > 0 {
		return nil, join(errs...)
	}
	return wire, nil
}

func wireCapability(value any) (any, error) {
	switch v := value.(type) {
	case []PortMapping:
		return wirePorts(v)
	case PortMapping:
		return wirePorts([]PortMapping{v})
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
