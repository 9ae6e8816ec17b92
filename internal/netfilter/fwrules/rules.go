// Package fwrules describes the firewall rules that belong to an attachment: the
// rules of an ADD ([Rules]), the attachment whose rules are looked for ([Target]),
// and the names of its chains and comments ([Owner]). It knows no packet filter.
package fwrules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// The results of looking for the packet filter that decides on a host.
const (
	DetectedIPTables  = "iptables"  // the host has the program iptables
	DetectedNative    = "native"    // the host has no program iptables
	DetectedFirewalld = "firewalld" // a firewalld runs; the addresses go to its zone
)

// ErrHostPortTaken means that a port of the host is forwarded to another
// attachment already, which the error names.
var ErrHostPortTaken = errors.New("the host port is taken")

// ErrOnlyExecutable means that only the rules of the reference plugins can do something.
var ErrOnlyExecutable = errors.New("only the plugin's executable makes such rules")

// ErrIncompleteTarget means that an owner or a target does not name its attachment.
var ErrIncompleteTarget = errors.New("a target needs a network, a container ID and an interface name")

// Owner is the attachment that rules belong to: that of a container to a network
// by an interface. All three are set, to names of any length and any characters.
type Owner struct {
	Network, ContainerID, IfName string
}

// Validate returns an error unless all names are set.
func (o Owner) Validate() error {
	if o.Network == "" || o.ContainerID == "" || o.IfName == "" {
		return fmt.Errorf("%w, got %q, %q and %q", ErrIncompleteTarget, o.Network, o.ContainerID, o.IfName)
	}
	return nil
}

// Masquerade gives packets that the container sends out of the subnets of its
// addresses the address of the host.
type Masquerade struct {
	Owner
	// Addresses are the container's, each with the length of its subnet.
	Addresses []netip.Prefix
}

// HostPort forwards one port of the host.
type HostPort struct {
	HostIP        netip.Addr // the zero Addr, or an unspecified one: every address of the host
	HostPort      uint16
	ContainerPort uint16
	Protocol      string // tcp, udp or sctp
}

// Match returns the values that a packet to the port has: the address of the host,
// which is the zero Addr for all addresses, and the protocol's number. ok is false
// if the port is not forwarded in the family.
func (p HostPort) Match(v4 bool) (host netip.Addr, protocol byte, ok bool, err error) {
	if protocol, err = ProtocolNumber(p.Protocol); err != nil {
		return host, 0, false, fmt.Errorf("host port %d: %w", p.HostPort, err)
	}
	if p.HostPort == 0 {
		return host, 0, false, errors.New("host port 0 cannot be forwarded")
	}
	host = p.HostIP.Unmap().WithZone("")
	if host.IsValid() && host.Is4() != v4 {
		return host, 0, false, nil
	}
	if host.IsUnspecified() {
		host = netip.Addr{}
	}
	return host, protocol, true, nil
}

// ProtocolNumber returns the number of a protocol whose ports can be forwarded.
func ProtocolNumber(name string) (byte, error) {
	switch name {
	case "tcp":
		return 6, nil
	case "udp":
		return 17, nil
	case "sctp":
		return 132, nil
	}
	return 0, fmt.Errorf("protocol %q is none of tcp, udp and sctp", name)
}

// PlainPrefix returns p without a mapping of IPv4 into IPv6, which no packet has.
func PlainPrefix(p netip.Prefix) (netip.Prefix, error) {
	a := p.Addr()
	if a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96), nil
	}
	if !p.IsValid() || a.Is4In6() {
		return p, fmt.Errorf("address %v is not valid", p)
	}
	return p, nil
}

// HostPorts forwards ports of the host to the container.
type HostPorts struct {
	Owner
	// V4 and V6 are the addresses that ports are forwarded to, with the length
	// of their subnet; a zero Prefix means that the container has none.
	V4, V6 netip.Prefix
	Ports  []HostPort
	// SNAT masquerades packets whose answers would not pass through the host
	// again: from the container to itself, and from the host's loopback addresses.
	SNAT    bool
	MasqAll bool // masquerade all other packets to a forwarded port, too

	// Conditions are the reference plugins' alone: nobody else makes the rules of such
	// ports.
	ConditionsV4, ConditionsV6 []string
}

// Forward lets the host forward the container's packets under any policy, and keeps
// bridges apart.
type Forward struct {
	Owner
	// Addresses are the container's, each with the length of its subnet. The packets
	// of the whole subnets are accepted, for all containers of the network.
	Addresses []netip.Prefix
	// AdminChain is the chain of iptables in which an administrator's rules go
	// first; empty means CNI-ADMIN.
	AdminChain string
	// Ingress is the policy for packets from other bridges: empty or "open",
	// "isolated", or "same-bridge"; Bridge is then the container's.
	Ingress, Bridge string
	// IngressOnly leaves the packets alone: firewalld accepts them, or the host has no
	// iptables, which could drop them.
	IngressOnly bool
}

// SpoofCheck drops the frames that the container sends with another MAC address than its
// own.
type SpoofCheck struct {
	Owner
	Port string // the interface's end on the bridge
	MAC  net.HardwareAddr
}

// Rules are the rules of an attachment.
type Rules struct {
	Masquerade []Masquerade
	HostPorts  []HostPorts
	Forward    []Forward
	Spoof      []SpoofCheck
}

// Add appends the rules of another attachment. The slices of r must be its own, as those
// of the zero value are.
func (r *Rules) Add(more Rules) {
	r.Masquerade = append(r.Masquerade, more.Masquerade...)
	r.HostPorts = append(r.HostPorts, more.HostPorts...)
	r.Forward = append(r.Forward, more.Forward...)
	r.Spoof = append(r.Spoof, more.Spoof...)
}

// Siblings are the other attachments of the same container that stay. They
// share the objects that the reference plugins name after the network and the
// container, or after the container alone: chains of iptables, comments of
// nftables.
type Siblings struct {
	// Owners lists all of them. A port of the host that one of them has belongs
	// to the container.
	Owners []Owner
	// Addresses are the addresses of all of them.
	Addresses []netip.Addr
	// Rules are the rules of those on the same network.
	Rules Rules
	// Unknown means that Rules may be incomplete: those of a sibling could not
	// be computed.
	Unknown bool
}

// Have reports whether the comment is that of a sibling.
func (s Siblings) Have(comment string) bool {
	return slices.ContainsFunc(s.Owners, func(o Owner) bool { return o.Comment() == comment })
}

// Missing is a part of an attachment's rules that does not exist, or is not as the ADD
// made it.
type Missing struct {
	Rules  Rules  // the part to make again, with the Restore of netfilter.Firewalls
	Object string // "masquerading of 10.1.0.2", "tcp 8080"
	Found  string // the rule in its place that must not be replaced; empty if there is none
	Why    string // why it cannot be made again otherwise
	Err    error  // the error of a Check, an [ErrMissing]
}
