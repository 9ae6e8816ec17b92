package netconf

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/embedcni/cni/internal/store/conflist"
)

// IPAM assigns addresses: HostLocal, or RawIPAM for another plugin.
type IPAM interface {
	// render validates the configuration and returns what is its JSON.
	render(n Network) (any, error)
}

// HostLocal assigns addresses from ranges, and keeps them on disk.
type HostLocal struct {
	// Ranges give one address each, so a container gets several from several ranges.
	Ranges []Range
	// Sets give one address each too, behind those of Ranges: from whichever range of the
	// set has a free one. The ranges of a set are of one family.
	Sets [][]Range
	// DefaultRoutes adds a default route for the family of each range.
	DefaultRoutes bool
	// Routes are the container's further ones.
	Routes []Route
	// DataDir has the addresses in use; empty is the plugin's default,
	// /var/lib/cni/networks.
	DataDir string `cni:"dataDir"`
	// ResolvConf is a file in the format of resolv.conf(5) whose settings go into the
	// result.
	ResolvConf string `cni:"resolvConf"`
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
	// MTU, AdvMSS and Priority need Version 1.1.0. Zero leaves them to the kernel.
	MTU      int `cni:"mtu"`
	AdvMSS   int `cni:"advmss"`
	Priority int `cni:"priority"`
}

func (h HostLocal) render(n Network) (any, error) {
	var o object
	o.set("type", conflist.HostLocal)
	var errs []error
	var ranges [][]object // a set for each
	var routes []object
	for i, set := range h.sets() {
		rendered, err := h.renderSet(i, set)
		ranges, errs = append(ranges, rendered), append(errs, err)
	}
	if len(ranges) == 0 {
		errs = append(errs, errors.New("field Ranges is empty, and so is Sets"))
	}
	errs = append(errs, h.validateApart())
	for _, r := range h.allRoutes() {
		rendered, err := r.render(n)
		routes, errs = append(routes, rendered), append(errs, err)
	}
	o.set("ranges", ranges)
	if len(routes) > 0 {
		o.set("routes", routes)
	}
	o.fields(h)
	for _, path := range []string{h.DataDir, h.ResolvConf} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("fields DataDir and ResolvConf: %q is no absolute path", path))
		}
	}
	return o, wrap(conflist.HostLocal, append(errs, o.extend(h.Extra))...)
}

// sets returns the sets of ranges: one for each of Ranges, and then Sets.
func (h HostLocal) sets() (all [][]Range) {
	for _, r := range h.Ranges {
		all = append(all, []Range{r})
	}
	return append(all, h.Sets...)
}

// all returns the ranges of all sets.
func (h HostLocal) all() []Range { return slices.Concat(h.sets()...) }

// nameOf names a range in errors, by its own number and that of its set.
func (h HostLocal) nameOf(set, i int) string {
	if set < len(h.Ranges) {
		return strconv.Itoa(set)
	}
	return fmt.Sprintf("%d of set %d", i, set-len(h.Ranges))
}

func (h HostLocal) renderSet(n int, set []Range) (rendered []object, err error) {
	var errs []error
	if len(set) == 0 {
		errs = append(errs, fmt.Errorf("set %d is empty", n-len(h.Ranges)))
	}
	for i, r := range set {
		one, err := r.render()
		if err != nil {
			errs = append(errs, fmt.Errorf("range %s: %w", h.nameOf(n, i), err))
		}
		if r.family().Is4() != set[0].family().Is4() {
			errs = append(errs, fmt.Errorf("range %s is of another family than the first", h.nameOf(n, i)))
		}
		rendered = append(rendered, one)
	}
	return rendered, errors.Join(errs...)
}

// validateApart refuses ranges that have an address in common.
func (h HostLocal) validateApart() error {
	type named struct {
		Range
		name string
	}
	var before []named
	var errs []error
	for n, set := range h.sets() {
		for i, r := range set {
			name := h.nameOf(n, i)
			for _, other := range before {
				if other.overlaps(r) {
					errs = append(errs, fmt.Errorf("ranges %s and %s overlap: %s and %s", other.name, name, other.Subnet, r.Subnet))
				}
			}
			before = append(before, named{r, name})
		}
	}
	return errors.Join(errs...)
}

// allRoutes returns the default routes and then the others.
func (h HostLocal) allRoutes() (all []Route) {
	seen := map[bool]bool{}
	for _, r := range h.all() {
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
	return o, errors.Join(errs...)
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

func (r Route) render(n Network) (o object, err error) {
	d := r.Dst
	if !d.IsValid() || d != d.Masked() || d.Addr().Is4In6() {
		return nil, fmt.Errorf("route: Dst %s is no network", d)
	}
	o.set("dst", d.String())
	var errs []error
	if r.Via.IsValid() {
		o.set("gw", r.Via.String())
		if r.Via.Is4() != d.Addr().Is4() || r.Via.Zone() != "" || r.Via.Is4In6() {
			errs = append(errs, fmt.Errorf("route to %s: Via %s is not of its family", d, r.Via))
		}
	}
	o.fields(r)
	if (r.MTU != 0 || r.AdvMSS != 0 || r.Priority != 0) && n.Version != "1.1.0" {
		errs = append(errs, fmt.Errorf("route to %s: MTU, AdvMSS and Priority need Version 1.1.0", d))
	}
	if r.MTU < 0 || r.AdvMSS < 0 || r.Priority < 0 {
		errs = append(errs, fmt.Errorf("route to %s: MTU, AdvMSS or Priority is negative", d))
	}
	return o, errors.Join(errs...)
}

// RawIPAM is the configuration of any IPAM plugin, as a JSON object with a "type".
type RawIPAM []byte

func (r RawIPAM) render(n Network) (any, error) { return Raw(r).render(n) }
