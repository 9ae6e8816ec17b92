package ipam

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/plugin"
)

// defaultDataDir is the reference plugin's default directory for addresses.
const defaultDataDir = "/var/lib/cni/networks"

// hostLocalConfig is a validated configuration.
type hostLocalConfig struct {
	dir        string // directory of the network
	resolvConf string
	routes     []*types.Route
	sets       []rangeSet
	requested  []netip.Addr // without duplicates
}

// bareAddress is an address with an optional prefix length, which is ignored.
type bareAddress struct{ addr netip.Addr }

// UnmarshalText parses "10.1.0.7" and "10.1.0.7/24".
func (a *bareAddress) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = bareAddress{}
		return nil
	}
	var addr netip.Addr
	prefix, err := netip.ParsePrefix(string(text))
	if err == nil {
		addr = prefix.Addr()
	} else {
		addr, err = netip.ParseAddr(string(text))
	}
	if err != nil || addr.Zone() != "" {
		return fmt.Errorf("%q is no IP address", text)
	}
	a.addr = addr.Unmap()
	return nil
}

// parseHostLocal reads the configuration of a request.
func parseHostLocal(r *plugin.Request) (*hostLocalConfig, error) {
	// The range at the top level of ipam is older than range sets.
	var n struct {
		IPAM *struct {
			rangeConf
			Routes     []*types.Route `json:"routes"`
			DataDir    string         `json:"dataDir"`
			ResolvConf string         `json:"resolvConf"`
			Ranges     [][]rangeConf  `json:"ranges"`
		} `json:"ipam"`
		RuntimeConfig struct {
			IPRanges [][]rangeConf `json:"ipRanges"`
			IPs      []bareAddress `json:"ips"`
		} `json:"runtimeConfig"`
		Args struct {
			CNI struct {
				IPs []bareAddress `json:"ips"`
			} `json:"cni"`
		} `json:"args"`
	}
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	if n.IPAM == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: the configuration has no ipam", r.Name)
	}
	c := &hostLocalConfig{resolvConf: n.IPAM.ResolvConf, routes: n.IPAM.Routes}
	c.dir = filepath.Join(cmp.Or(n.IPAM.DataDir, defaultDataDir), r.Name)
	var err error
	if c.requested, err = requested(r.Args, n.Args.CNI.IPs, n.RuntimeConfig.IPs); err != nil {
		return nil, err
	}
	sets := n.RuntimeConfig.IPRanges
	if n.IPAM.Subnet.IsValid() {
		sets = append(sets, []rangeConf{n.IPAM.rangeConf})
	}
	if c.sets, err = rangeSets(append(sets, n.IPAM.Ranges...), r.CNIVersion); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: ipam: %w", r.Name, err)
	}
	return c, nil
}

// Requested returns the addresses that a request asks for, from all three places, and the
// directory in which they are reserved, for the comparison with the reference plugin's. It
// returns none if the request is invalid.
func Requested(r *plugin.Request) (dir string, addrs []netip.Addr) {
	c, err := parseHostLocal(r)
	if err != nil {
		return "", nil
	}
	return c.dir, c.requested
}

// requested returns the addresses that the caller requests, from all three
// places.
func requested(args string, more ...[]bareAddress) (unique []netip.Addr, err error) {
	var e struct { // the fields have the names of the arguments
		types.CommonArgs
		IP bareAddress
	}
	if err := types.LoadArgs(args, &e); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	if e.IP.addr.IsValid() {
		unique = append(unique, e.IP.addr)
	}
	for _, a := range slices.Concat(more...) {
		if !a.addr.IsValid() {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "ips: an address that is requested is empty")
		}
		if !slices.Contains(unique, a.addr) {
			unique = append(unique, a.addr)
		}
	}
	return unique, nil
}

// rangeSets validates all sets. Sets must not overlap.
func rangeSets(confs [][]rangeConf, cniVersion string) ([]rangeSet, error) {
	if len(confs) == 0 {
		return nil, fmt.Errorf("no ranges are given: set subnet or ranges")
	}
	var sets []rangeSet
	perFamily := make(map[int]int)
	for i, conf := range confs {
		set, err := canonicalSet(conf)
		if err != nil {
			return nil, fmt.Errorf("range set %d: %w", i, err)
		}
		for j, other := range sets {
			if set.overlaps(other) {
				return nil, fmt.Errorf("range set %d overlaps with %d: %s and %s", j, i, other, set)
			}
		}
		sets = append(sets, set)
		perFamily[set[0].first.BitLen()]++
	}
	// CNI specification 0.2.0: a result has one address of each family.
	for _, n := range perFamily {
		if several, err := version.GreaterThanOrEqualTo(cniVersion, "0.3.0"); n > 1 && (err != nil || !several) {
			return nil, fmt.Errorf("cniVersion %q has no more than one address of a family, and there are %d range sets", cniVersion, n)
		}
	}
	return sets, nil
}

// parseResolvConf reads a resolver's configuration, resolv.conf(5):
//
//	nameserver 10.1.0.53
//	search example.org example.net
//	options ndots:2
func parseResolvConf(text string) types.DNS {
	var dns types.DNS
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.ContainsRune("#;", rune(fields[0][0])) {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns
}

// addressRange is the addresses from first to last, both included. The gateway
// is never assigned; it need not be in the range, nor in the subnet.
type addressRange struct {
	subnet      netip.Prefix
	first, last netip.Addr
	gateway     netip.Addr
}

// rangeSet is a source of one address: ranges of one family that do not overlap,
// in the order of the configuration.
type rangeSet []addressRange

// rangeConf is a configured range. Missing fields are derived from the subnet.
type rangeConf struct {
	RangeStart netip.Addr   `json:"rangeStart"`
	RangeEnd   netip.Addr   `json:"rangeEnd"`
	Subnet     netip.Prefix `json:"subnet"`
	Gateway    netip.Addr   `json:"gateway"`
}

// canonical validates a range and completes it: the gateway is the subnet's
// first address, and the range is everything from there to the last address,
// without an IPv4 broadcast address. The subnet must be a network's address with
// room for hosts.
func (c rangeConf) canonical() (addressRange, error) {
	network := c.Subnet.Addr()
	switch {
	case !c.Subnet.IsValid():
		return addressRange{}, fmt.Errorf("subnet is missing, or no network")
	case network.Is4In6():
		return addressRange{}, fmt.Errorf("subnet %s is an IPv4 network with the mask of an IPv6 network", c.Subnet)
	case c.Subnet.Bits() > network.BitLen()-2:
		return addressRange{}, fmt.Errorf("subnet %s is too small: it has no address beside the network's and the gateway's", c.Subnet)
	case c.Subnet.Masked() != c.Subnet:
		return addressRange{}, fmt.Errorf("subnet %s has host bits set: the network is %s", c.Subnet, c.Subnet.Masked())
	}
	r := addressRange{subnet: c.Subnet, gateway: network.Next(), first: network.Next(), last: lastOf(c.Subnet)}
	for _, field := range []struct {
		name   string
		value  netip.Addr
		target *netip.Addr
	}{{"gateway", c.Gateway, &r.gateway}, {"rangeStart", c.RangeStart, &r.first}, {"rangeEnd", c.RangeEnd, &r.last}} {
		if !field.value.IsValid() {
			continue
		}
		*field.target = field.value.Unmap()
		if field.value.Zone() != "" {
			return r, fmt.Errorf("%s %s has a zone", field.name, field.value)
		}
		if field.name != "gateway" && !r.subnet.Contains(*field.target) {
			return r, fmt.Errorf("%s %s is not in the subnet %s", field.name, *field.target, r.subnet)
		}
	}
	if r.last.Less(r.first) {
		return r, fmt.Errorf("the range from %s to %s in the subnet %s is empty", r.first, r.last, r.subnet)
	}
	return r, nil
}

// lastOf returns the last address of a network that an interface can have.
func lastOf(network netip.Prefix) netip.Addr {
	bytes := network.Addr().AsSlice()
	for i := network.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	if last.Is4() {
		last = last.Prev() // without the broadcast address
	}
	return last
}

func (r addressRange) contains(a netip.Addr) bool {
	return a.BitLen() == r.first.BitLen() && !a.Less(r.first) && !r.last.Less(a)
}

func (r addressRange) overlaps(o addressRange) bool {
	return r.contains(o.first) || o.contains(r.first)
}

func (r addressRange) String() string { return r.first.String() + "-" + r.last.String() }

// canonicalSet validates the ranges of a set and completes them.
func canonicalSet(confs []rangeConf) (rangeSet, error) {
	if len(confs) == 0 {
		return nil, fmt.Errorf("it has no ranges")
	}
	var set rangeSet
	for _, c := range confs {
		r, err := c.canonical()
		if err != nil {
			return nil, err
		}
		if len(set) > 0 && r.first.BitLen() != set[0].first.BitLen() {
			return nil, fmt.Errorf("it mixes IPv4 and IPv6: %s and %s", set[0], r)
		}
		for _, other := range set {
			if r.overlaps(other) {
				return nil, fmt.Errorf("the ranges %s and %s overlap", other, r)
			}
		}
		set = append(set, r)
	}
	return set, nil
}

func (s rangeSet) overlaps(other rangeSet) bool {
	return slices.ContainsFunc(s, func(r addressRange) bool { return slices.ContainsFunc(other, r.overlaps) })
}

// find returns the range that contains the address.
func (s rangeSet) find(a netip.Addr) (addressRange, bool) {
	for _, r := range s {
		if r.contains(a) {
			return r, true
		}
	}
	return addressRange{}, false
}

// after yields every assignable address once, with its range. It begins after
// the address that was assigned last, so that a container that is restarted
// repeatedly does not get an address that others still remember. If that address
// is in no range, it begins with the first.
func (s rangeSet) after(previous netip.Addr) iter.Seq2[netip.Addr, addressRange] {
	return func(yield func(netip.Addr, addressRange) bool) {
		at, addr := 0, s[0].first
		for i, r := range s {
			if r.contains(previous) {
				at, addr = s.next(i, previous)
			}
		}
		for start := addr; ; {
			if addr != s[at].gateway && !yield(addr, s[at]) {
				return
			}
			if at, addr = s.next(at, addr); addr == start {
				return
			}
		}
	}
}

// next returns the address after one of the range i, and its range.
func (s rangeSet) next(i int, a netip.Addr) (int, netip.Addr) {
	if a != s[i].last {
		return i, a.Next()
	}
	i = (i + 1) % len(s)
	return i, s[i].first
}

func (s rangeSet) String() string {
	parts := make([]string, len(s))
	for i, r := range s {
		parts[i] = r.String()
	}
	return strings.Join(parts, ",")
}
