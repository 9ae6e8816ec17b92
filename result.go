package cni

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/chain"
)

// Result is the outcome of Setup: the interfaces, in the container and on the host,
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
	// NetNS is the path of the container's network namespace if Setup has made it;
	// see WithNewNetNS.
	NetNS string `json:",omitempty"`
	// PortWarnings are about ports of the host that Setup has forwarded although a
	// process uses them, or at addresses that the host does not have; see
	// WithStrictPorts. The Result of Lookup has none.
	PortWarnings []*PortError `json:",omitempty"`

	// Ignored are the names of the capabilities that Setup was given and that had no effect:
	// no plugin of the networks for which they were meant declares them. See WithCapability.
	// The Result of Lookup has none.
	Ignored []string `json:",omitempty"`

	// Requested are the ports of WithPorts, with the host ports that Setup has chosen; see
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
// plugin's order.
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
			i.Addresses = append(i.Addresses, newAddress(net.IPNet{IP: ip.IP}, ip.Gateway))
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
		merged.Nameservers = union(merged.Nameservers, d.Nameservers)
		merged.Search = union(merged.Search, d.Search)
		merged.Options = union(merged.Options, d.Options)
		if merged.Domain == "" {
			merged.Domain = d.Domain
		}
	}
	return merged
}

func union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// source is a plugin's result and its network.
type source struct {
	network string
	ifName  string
	result  *types100.Result
	ports   []PortMapping // that a plugin of the network was asked to forward
}

// newResult converts the results of the networks. defaultIf is the prefix with 0; the
// map stores addresses without an interface there.
func newResult(sources []source, defaultIf string) (*Result, error) {
	r := &Result{}
	for _, s := range sources {
		if err := chain.Walkable(s.result); err != nil {
			return nil, fmt.Errorf("network %q: %w: %w", s.network, err, ErrInvalidResult)
		}
		n := newNetworkResult(s)
		r.Networks = append(r.Networks, n)
		r.raw = append(r.raw, s.result)
		r.DNS = append(r.DNS, s.result.DNS)
		r.Routes = append(r.Routes, s.result.Routes...)
	}
	r.fillMap(sources, defaultIf)
	return r, nil
}

func newNetworkResult(s source) *NetworkResult {
	n := &NetworkResult{Name: s.network, IfName: s.ifName, Routes: s.result.Routes, DNS: s.result.DNS}
	for _, i := range s.result.Interfaces {
		n.Interfaces = append(n.Interfaces, &Interface{
			Name: i.Name, Network: s.network, Sandbox: i.Sandbox, Mac: i.Mac,
			MTU: i.Mtu, PciID: i.PciID, SocketPath: i.SocketPath,
		})
	}
	for _, ip := range s.result.IPs {
		i := n.holder(ip.Interface)
		i.Addresses = append(i.Addresses, newAddress(ip.Address, ip.Gateway))
	}
	return n
}

// holder returns the interface of an address. Without an index it is the requested
// interface, which the plugin may not have reported (results before CNI 0.3.0 list no
// interfaces).
func (n *NetworkResult) holder(index *int) *Interface {
	if index != nil {
		return n.Interfaces[*index]
	}
	for _, i := range n.Interfaces {
		if i.Name == n.IfName && i.Sandbox != "" {
			return i
		}
	}
	for _, i := range n.Interfaces {
		if i.Name == n.IfName {
			return i
		}
	}
	i := &Interface{Name: n.IfName, Network: n.Name}
	n.Interfaces = append(n.Interfaces, i)
	return i
}

// fillMap builds the map from all results. Interfaces that share a name have one
// entry: the container's rather than the host's, with the first network's attributes
// and all addresses, each once, because two networks may report the same address of
// lo. Networks distinguishes them.
func (r *Result) fillMap(sources []source, defaultIf string) {
	r.Interfaces = map[string]*Config{}
	inSandbox := map[string]bool{}
	for _, s := range sources {
		for _, i := range s.result.Interfaces {
			inSandbox[i.Name] = inSandbox[i.Name] || i.Sandbox != ""
		}
	}
	shown := func(i *types100.Interface) bool { return i.Sandbox != "" || !inSandbox[i.Name] }
	for _, s := range sources {
		for _, i := range s.result.Interfaces {
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
		for _, ip := range s.result.IPs {
			name := defaultIf
			if ip.Interface != nil {
				i := s.result.Interfaces[*ip.Interface]
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

// newAddress converts an address. A missing or impossible prefix length, as in results
// built by hand, becomes that of a single host.
func newAddress(n net.IPNet, gateway net.IP) Address {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return Address{}
	}
	bits, size := n.Mask.Size()
	if size != 128 || bits >= 96 { // ::ffff:10.0.0.1/64 is nothing as IPv4
		ip = ip.Unmap()
	}
	switch {
	case size == 128 && bits >= 96 && ip.Is4():
		bits -= 96
	case size != ip.BitLen():
		bits = ip.BitLen()
	}
	a := Address{Prefix: netip.PrefixFrom(ip, bits)}
	if gw, ok := netip.AddrFromSlice(gateway); ok {
		a.Gateway = gw.Unmap()
	}
	return a
}
