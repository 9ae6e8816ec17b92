package hostlocal

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

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
