// Package ports finds out who has a port of the host: which claims exclude each other, who
// claims a port on record or in libcni's cache, and which ports may be chosen. It does not
// ask the kernel.
package ports

import (
	"cmp"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Claim is a port of the host: that of one address, or of all.
type Claim struct {
	Protocol string // tcp, udp or sctp
	// Addr is the host's address. 0.0.0.0 and :: are all addresses of their family, and
	// the zero Addr is all addresses of both. It is never an IPv4 address in IPv6.
	Addr netip.Addr
	Port uint16
}

// Protocols returns the protocols that have ports.
func Protocols() []string { return []string{"tcp", "udp", "sctp"} }

// Overlaps reports whether a packet can be for both claims.
func (c Claim) Overlaps(o Claim) bool {
	if c.Protocol != o.Protocol || c.Port != o.Port {
		return false
	}
	if !c.Addr.IsValid() || !o.Addr.IsValid() {
		return true
	}
	if c.Addr.Is4() != o.Addr.Is4() {
		return false
	}
	return c.Addr == o.Addr || c.Addr.IsUnspecified() || o.Addr.IsUnspecified()
}

// Overlap reports whether a claim in one list overlaps one in the other.
func Overlap(all, others []Claim) bool {
	return slices.ContainsFunc(all, func(c Claim) bool { return slices.ContainsFunc(others, c.Overlaps) })
}

// Includes reports whether every packet for o is also for c.
func (c Claim) Includes(o Claim) bool {
	switch {
	case !c.Overlaps(o):
		return false
	case !c.Addr.IsValid() || c.Addr == o.Addr:
		return true
	}
	return o.Addr.IsValid() && c.Addr.IsUnspecified()
}

// String returns the claim as "tcp 192.0.2.1:8080", or "tcp 8080" for all addresses.
func (c Claim) String() string {
	if !c.Addr.IsValid() {
		return c.Protocol + " " + strconv.Itoa(int(c.Port))
	}
	return c.Protocol + " " + netip.AddrPortFrom(c.Addr, c.Port).String()
}

// Mapping is an entry of the capability portMappings.
type Mapping struct {
	HostPort, ContainerPort uint16
	Protocol, HostIP        string
}

// Mappings reads the capability portMappings, which the caller and the record have in
// different types:
//
//	[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
//
// With an error these are the entries that could be read.
func Mappings(capability any) (all []Mapping, err error) {
	data, ok := capability.(json.RawMessage)
	if !ok {
		if data, err = json.Marshal(capability); err != nil {
			return nil, err
		}
	}
	var entries []json.RawMessage
	err = json.Unmarshal(data, &entries)
	for _, entry := range entries {
		var m Mapping
		if bad := json.Unmarshal(entry, &m); bad != nil {
			err = bad
		} else {
			all = append(all, m)
		}
	}
	return all, err
}

// Of returns the claims of the capability portMappings. Mappings that no plugin can apply
// claim nothing.
func Of(capability any) (claims []Claim) {
	all, _ := Mappings(capability)
	for _, m := range all {
		if c, ok := Claimed(int(m.HostPort), m.Protocol, m.HostIP); ok {
			claims = append(claims, c)
		}
	}
	return claims
}

// Claimed is [Of] for the values of one mapping.
func Claimed(hostPort int, protocol, hostIP string) (c Claim, ok bool) {
	if hostPort < 1 || hostPort > math.MaxUint16 {
		return Claim{}, false
	}
	c = Claim{Protocol: cmp.Or(strings.ToLower(protocol), "tcp"), Port: uint16(hostPort)}
	if hostIP != "" {
		addr, err := netip.ParseAddr(hostIP)
		if err != nil || addr.Zone() != "" {
			return Claim{}, false
		}
		c.Addr = addr.Unmap()
	}
	return c, slices.Contains(Protocols(), c.Protocol)
}
