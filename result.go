package cni

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/engine/engine"
)

// Result is the outcome of [Runtime.Setup]: the interfaces, in the container and on the host,
// and their addresses.
//
// Interfaces, DNS and Routes are go-cni's. Networks holds the same data in the order
// in which the plugins reported it, and with details that the map cannot hold: prefix
// lengths, MTUs, and interfaces of equal name on different networks or sides. A
// runtime may persist a Result as JSON, which holds everything but Raw.
type Result struct {
	// Interfaces maps the names of interfaces to their configuration. There is
	// always an entry for the prefix with 0, which is empty if no plugin reported
	// it. If the host and the container have an interface of one name, the entry is
	// the container's.
	Interfaces map[string]*Config
	// DNS has an entry for each network, empty if the network reported none.
	DNS []types.DNS
	// Routes holds the routes of all networks.
	Routes []*types.Route
	// Networks holds the networks in the order they were loaded or selected.
	Networks []*NetworkResult `json:",omitempty"`
	// NetNS is the path of the container's network namespace if [Runtime.Setup] has made it;
	// see [WithNewNetNS].
	NetNS string `json:",omitempty"`
	// PortWarnings are about ports of the host that Setup has forwarded although a
	// process uses them, or at addresses that the host does not have; see
	// [WithStrictPorts]. The Result of [Runtime.Lookup] has none.
	PortWarnings []*PortError `json:",omitempty"`

	// Ignored are the names of the capabilities that Setup was given and that had no effect:
	// no plugin of the networks for which they were meant declares them. See [WithCapability].
	// The Result of [Runtime.Lookup] has none.
	Ignored []string `json:",omitempty"`

	// Requested are the ports of [WithPorts], with the host ports that Setup has chosen; see
	// Port.
	Requested []Port `json:",omitempty"`

	raw []*types100.Result
}

// CNIResult is Result.
//
// Deprecated: use Result.
type CNIResult = Result

// Config is an interface in Result.Interfaces.
type Config struct {
	IPConfigs  []*IPConfig
	Mac        string
	Sandbox    string
	PciID      string
	SocketPath string
}

// IPConfig is an address without its prefix length, and its gateway.
type IPConfig struct {
	IP      net.IP
	Gateway net.IP
}

// NetworkResult is the result of one network.
type NetworkResult struct {
	Name       string // the network's
	IfName     string // the requested name of the interface in the container
	Interfaces []*Interface
	Routes     []*types.Route `json:",omitempty"`
	DNS        types.DNS
	// Ports are the ports of the host that are forwarded to the container's addresses on
	// this network. If several networks of a container forward one port, the first that
	// has an address of the family does.
	Ports []PortMapping `json:",omitempty"`
}

// Interface is an interface that a network reported. Its addresses are in the
// plugin's order. Plugins report the addresses of the container alone: that of a bridge, or of
// the host's end of a ptp pair, is the Gateway of one of these, and [Runtime.Gateways] has it.
type Interface struct {
	Name       string
	Network    string // the network that reported it
	Sandbox    string `json:",omitempty"` // empty: it is on the host
	Mac        string `json:",omitempty"`
	MTU        int    `json:",omitempty"` // bytes; 0 if not reported (CNI before 1.1.0)
	PciID      string `json:",omitempty"`
	SocketPath string `json:",omitempty"`
	Addresses  []Address
}

// Address is an address with its prefix length, and its gateway if it has one.
type Address struct {
	Prefix  netip.Prefix // the address itself, not masked: 10.1.2.3/24
	Gateway netip.Addr   // the zero Addr if there is none
}

// IP returns the address without the prefix length.
func (a Address) IP() netip.Addr { return a.Prefix.Addr() }

// IsValid reports whether there is an address.
func (a Address) IsValid() bool { return a.Prefix.IsValid() }

// Raw returns the plugins' results, one for each network in order. It is nil
// for a Result that was read from JSON.
func (r *Result) Raw() []*types100.Result { return r.raw }

// Primary returns the container's main interface by the schedulers' rule: the first
// interface in a sandbox, in the order of names, that has an address; otherwise the
// first interface of all that has one. Loopback addresses do not count. It returns
// nil if there is no address.
func (r *Result) Primary() *Interface { return r.first(func(netip.Addr) bool { return true }) }

// IPv4 returns the container's main IPv4 address: the first one of the interface that
// Primary's rule finds if only IPv4 addresses count. It is invalid if there is none.
func (r *Result) IPv4() Address { return r.firstAddress(netip.Addr.Is4) }

// IPv6 is IPv4 for IPv6.
func (r *Result) IPv6() Address { return r.firstAddress(netip.Addr.Is6) }

func (r *Result) first(counts func(netip.Addr) bool) *Interface {
	for _, i := range r.ranked() {
		if i.address(counts).IsValid() {
			return i
		}
	}
	return nil
}

// ranked returns all interfaces, those in a sandbox first, in the order of names.
func (r *Result) ranked() []*Interface {
	all := r.allInterfaces()
	slices.SortStableFunc(all, func(a, b *Interface) int {
		if aHost, bHost := a.Sandbox == "", b.Sandbox == ""; aHost != bHost {
			if aHost {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return all
}

func (r *Result) firstAddress(counts func(netip.Addr) bool) Address {
	if i := r.first(counts); i != nil {
		return i.address(counts)
	}
	return Address{}
}

// address returns the first address that counts.
func (i *Interface) address(counts func(netip.Addr) bool) Address {
	for _, a := range i.Addresses {
		if ip := a.IP(); ip.IsValid() && !ip.IsLoopback() && counts(ip) {
			return a
		}
	}
	return Address{}
}

// allInterfaces lists the interfaces of all networks. A Result that go-cni wrote as
// JSON has no Networks; then the map is used.
func (r *Result) allInterfaces() []*Interface {
	var all []*Interface
	for _, n := range r.Networks {
		all = append(all, n.Interfaces...)
	}
	if r.Networks != nil {
		return all
	}
	for name, c := range r.Interfaces {
		i := &Interface{Name: name, Sandbox: c.Sandbox, Mac: c.Mac, PciID: c.PciID, SocketPath: c.SocketPath}
		for _, ip := range c.IPConfigs {
			i.Addresses = append(i.Addresses, Address(engine.NewAddress(net.IPNet{IP: ip.IP}, ip.Gateway)))
		}
		all = append(all, i)
	}
	return all
}

// MergedDNS returns one resolver configuration for all networks: the lists without
// repetition, in the order of the networks, and the first domain.
func (r *Result) MergedDNS() types.DNS {
	var merged types.DNS
	for _, d := range r.DNS {
		merged.Nameservers = engine.Union(merged.Nameservers, d.Nameservers)
		merged.Search = engine.Union(merged.Search, d.Search)
		merged.Options = engine.Union(merged.Options, d.Options)
		if merged.Domain == "" {
			merged.Domain = d.Domain
		}
	}
	return merged
}

// newResult converts the results of the networks. defaultIf is the prefix with 0; the
// map stores addresses without an interface there.
func newResult(sources []engine.Source, defaultIf string) (*Result, error) {
	if err := engine.Validate(sources); err != nil {
		return nil, err
	}
	r := &Result{}
	for _, s := range sources {
		n := newNetworkResult(s)
		r.Networks = append(r.Networks, n)
		r.raw = append(r.raw, s.Result)
		r.DNS = append(r.DNS, s.Result.DNS)
		r.Routes = append(r.Routes, s.Result.Routes...)
	}
	r.fillMap(sources, defaultIf)
	return r, nil
}

func newNetworkResult(s engine.Source) *NetworkResult {
	n := &NetworkResult{Name: s.Network, IfName: s.IfName, Routes: s.Result.Routes, DNS: s.Result.DNS}
	for _, i := range s.Result.Interfaces {
		n.Interfaces = append(n.Interfaces, &Interface{
			Name: i.Name, Network: s.Network, Sandbox: i.Sandbox, Mac: i.Mac,
			MTU: i.Mtu, PciID: i.PciID, SocketPath: i.SocketPath,
		})
	}
	for _, ip := range s.Result.IPs {
		at := engine.Holder(s.Result, ip, s.IfName)
		if at == len(n.Interfaces) {
			n.Interfaces = append(n.Interfaces, &Interface{Name: s.IfName, Network: s.Network})
		}
		n.Interfaces[at].Addresses = append(n.Interfaces[at].Addresses, Address(engine.NewAddress(ip.Address, ip.Gateway)))
	}
	return n
}

// fillMap builds the map from all results. Interfaces that share a name have one
// entry: the container's rather than the host's, with the first network's attributes
// and all addresses, each once, because two networks may report the same address of
// lo. Networks distinguishes them.
func (r *Result) fillMap(sources []engine.Source, defaultIf string) {
	r.Interfaces = map[string]*Config{}
	inSandbox := map[string]bool{}
	for _, s := range sources {
		for _, i := range s.Result.Interfaces {
			inSandbox[i.Name] = inSandbox[i.Name] || i.Sandbox != ""
		}
	}
	shown := func(i *types100.Interface) bool { return i.Sandbox != "" || !inSandbox[i.Name] }
	for _, s := range sources {
		for _, i := range s.Result.Interfaces {
			if shown(i) && r.Interfaces[i.Name] == nil {
				r.Interfaces[i.Name] = &Config{
					Mac: i.Mac, Sandbox: i.Sandbox, PciID: i.PciID, SocketPath: i.SocketPath,
				}
			}
		}
	}
	if r.Interfaces[defaultIf] == nil {
		r.Interfaces[defaultIf] = &Config{}
	}
	for _, s := range sources {
		for _, ip := range s.Result.IPs {
			name := defaultIf
			if ip.Interface != nil {
				i := s.Result.Interfaces[*ip.Interface]
				if !shown(i) {
					continue
				}
				name = i.Name
			}
			r.Interfaces[name].add(IPConfig{IP: ip.Address.IP, Gateway: ip.Gateway})
		}
	}
}

func (c *Config) add(ip IPConfig) {
	known := slices.ContainsFunc(c.IPConfigs, func(k *IPConfig) bool { return k.IP.Equal(ip.IP) && k.Gateway.Equal(ip.Gateway) })
	if !known {
		c.IPConfigs = append(c.IPConfigs, &ip)
	}
}

// result converts what a Setup has made.
func (l *loaded) result(made *engine.SetupResult) (*Result, error) {
	result, err := newResult(made.Attached, ifName(l.opts.prefix, 0))
	if err != nil {
		return nil, err
	}
	result.NetNS, result.PortWarnings, result.Ignored = made.NetNS, made.PortWarnings, made.Ignored
	result.notePorts(made.Earlier, made.Attached)
	result.Requested = asPorts(made.Requested)
	return result, nil
}
