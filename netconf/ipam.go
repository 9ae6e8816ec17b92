package netconf

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
)

// IPAM assigns addresses: [HostLocal], or [RawIPAM] for another plugin.
type IPAM interface {
	// render validates the configuration and returns what is its JSON.
	render(n Network) (any, error)
}

// HostLocal assigns addresses from ranges, and keeps them on disk. [RawIPAM] has the forms of
// its configuration that have no field here, such as sets of ranges and metrics of routes.
type HostLocal struct {
	// Ranges give one address each, so a container gets several from several ranges.
	Ranges []Range
	// DefaultRoutes adds a default route for the family of each range.
	DefaultRoutes bool
	// Routes are the container's further ones.
	Routes []Route
	// DataDir has the addresses in use; empty is the plugin's default,
	// /var/lib/cni/networks.
	DataDir string `cni:"dataDir"`
	// Extra are further fields.
	Extra map[string]any
}

// Range is the addresses of a subnet, or some of them.
type Range struct {
	// Subnet is a network's address with its prefix length. It needs room for two
	// addresses.
	Subnet netip.Prefix
	// Gateway is by default the first address, First the same, and Last the last one.
	Gateway, First, Last netip.Addr
	// Pools and Bits ask [Dir.Write] for a subnet of that length, in the first pool with a
	// free one. Then the other fields are empty.
	Pools []netip.Prefix
	Bits  int
}

// AnyIPv4 is a range whose subnet is found in the private networks of RFC 1918, with room
// for 253 containers.
func AnyIPv4() Range {
	return Range{Bits: 24, Pools: []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	}}
}

// AnyIPv6 is a range whose subnet is found in the unique local networks of RFC 4193.
func AnyIPv6() Range {
	return Range{Bits: 64, Pools: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}}
}

// Route is a route in the container.
type Route struct {
	Dst netip.Prefix
	// Via is the gateway; by default that of the address of its family.
	Via netip.Addr
}

func (h HostLocal) render(Network) (any, error) {
	var o object
	o.set("type", conflist.HostLocal)
	var errs []error
	var ranges [][]object // a set for each, of which the plugin takes one address
	var routes []object
	for i, r := range h.Ranges {
		rendered, err := r.render()
		if err != nil {
			errs = append(errs, fmt.Errorf("range %d: %w", i, err))
		}
		for n, other := range h.Ranges[:i] {
			if other.overlaps(r) {
				errs = append(errs, fmt.Errorf("ranges %d and %d overlap: %s and %s", n, i, other.Subnet, r.Subnet))
			}
		}
		ranges = append(ranges, []object{rendered})
	}
	if len(ranges) == 0 {
		errs = append(errs, errors.New("field Ranges is empty"))
	}
	for _, r := range h.allRoutes() {
		rendered, err := r.render()
		routes, errs = append(routes, rendered), append(errs, err)
	}
	o.set("ranges", ranges)
	if len(routes) > 0 {
		o.set("routes", routes)
	}
	o.fields(h)
	if h.DataDir != "" && !filepath.IsAbs(h.DataDir) {
		errs = append(errs, fmt.Errorf("field DataDir: %q is no absolute path", h.DataDir))
	}
	return o, wrap(conflist.HostLocal, append(errs, o.extend(h.Extra))...)
}

// allRoutes returns the default routes and then the others.
func (h HostLocal) allRoutes() (all []Route) {
	seen := map[bool]bool{}
	for _, r := range h.Ranges {
		if is4 := r.Subnet.Addr().Is4(); h.DefaultRoutes && r.Subnet.IsValid() && !seen[is4] {
			seen[is4] = true
			all = append(all, Route{Dst: everything(is4)})
		}
	}
	return append(all, h.Routes...)
}

func everything(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// family returns an address of the range's family.
func (r Range) family() netip.Addr {
	if !r.Subnet.IsValid() && len(r.Pools) > 0 {
		return r.Pools[0].Addr()
	}
	return r.Subnet.Addr()
}

func (r Range) render() (o object, err error) {
	s := r.Subnet
	switch {
	case !s.IsValid() && len(r.Pools) > 0:
		return nil, errors.New("its subnet has not been chosen: Dir.Write does that")
	case !s.IsValid():
		return nil, errors.New("field Subnet is missing")
	case s.Addr().Is4In6():
		return nil, fmt.Errorf("field Subnet %s is an IPv4 network in the form of IPv6", s)
	case s != s.Masked():
		return nil, fmt.Errorf("field Subnet %s has host bits set: the network is %s", s, s.Masked())
	case s.Bits() > s.Addr().BitLen()-2:
		return nil, fmt.Errorf("field Subnet %s is too small", s)
	}
	o.set("subnet", s.String())
	var errs []error
	for _, f := range []struct {
		key, name string
		addr      netip.Addr
	}{{"rangeStart", "First", r.First}, {"rangeEnd", "Last", r.Last}, {"gateway", "Gateway", r.Gateway}} {
		if !f.addr.IsValid() {
			continue
		}
		o.set(f.key, f.addr.String())
		if !s.Contains(f.addr) || f.addr.Zone() != "" {
			errs = append(errs, fmt.Errorf("%s %s is not in the subnet %s", f.name, f.addr, s))
		}
	}
	if len(errs) == 0 {
		if first, last := r.span(); last.Less(first) {
			errs = append(errs, fmt.Errorf("field First %s is behind Last %s", first, last))
		}
	}
	return o, joined.Errors(errs...)
}

// span returns the first and the last address that are assigned.
func (r Range) span() (first, last netip.Addr) {
	first, last = r.First, r.Last
	if !first.IsValid() {
		first = r.Subnet.Addr().Next()
	}
	if !last.IsValid() {
		b := r.Subnet.Addr().AsSlice()
		for i := r.Subnet.Bits(); i < 8*len(b); i++ {
			b[i/8] |= 1 << (7 - i%8)
		}
		last, _ = netip.AddrFromSlice(b)
		if last.Is4() {
			last = last.Prev() // the broadcast address
		}
	}
	return first, last
}

func (r Range) overlaps(o Range) bool {
	if !r.Subnet.IsValid() || !o.Subnet.IsValid() || !r.Subnet.Overlaps(o.Subnet) {
		return false
	}
	first, last := r.span()
	from, to := o.span()
	return !to.Less(first) && !last.Less(from)
}

func (r Route) isDefault() bool { return r.Dst.IsValid() && r.Dst.Bits() == 0 }

func (r Route) render() (o object, err error) {
	d := r.Dst
	if !d.IsValid() || d != d.Masked() || d.Addr().Is4In6() {
		return nil, fmt.Errorf("route: Dst %s is no network", d)
	}
	o.set("dst", d.String())
	if r.Via.IsValid() {
		o.set("gw", r.Via.String())
		if r.Via.Is4() != d.Addr().Is4() || r.Via.Zone() != "" || r.Via.Is4In6() {
			err = fmt.Errorf("route to %s: Via %s is not of its family", d, r.Via)
		}
	}
	return o, err
}

// RawIPAM is the configuration of any IPAM plugin, as a JSON object with a "type".
type RawIPAM []byte

func (r RawIPAM) render(n Network) (any, error) { return Raw(r).render(n) }
