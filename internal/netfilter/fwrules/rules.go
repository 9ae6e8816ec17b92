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

// Backend is the packet filter that has the rules of an attachment, and their form.
type Backend string

const (
	// Native is nftables, in sets and maps of a table of this module's own: a
	// packet and a change cost the same for any number of containers. It is the
	// backend if a configuration names none. The documentation of package native
	// describes the table.
	//
	// An address belongs to one attachment at a time: an ADD takes over the
	// elements that another attachment left with the address, and the late DEL of
	// that attachment leaves them alone. A port of the host belongs to the first container that asks for
	// it. The ADD of another container fails with [ErrHostPortTaken]; one of the
	// same container leaves the port as it is, see [Siblings].
	Native Backend = ""
	// IPTables and NFTables are the forms of the reference plugins, which can
	// check and delete these rules, as this module does theirs.
	//
	// In NFTables an ADD looks for nothing, so that a second ADD for the same
	// attachment makes second copies. They do no harm, and go with the first.
	// Conditions are the table's, as with the reference plugin: the last ones
	// are for all containers. Beyond the reference plugin it has MasqAll.
	IPTables Backend = "iptables"
	NFTables Backend = "nftables"
)

// Unknown returns the error for a backend that does not exist.
func (b Backend) Unknown() error {
	return fmt.Errorf("there is no firewall backend %q: iptables or nftables", string(b))
}

// The results of looking for a backend where the configuration names none.
const (
	DetectedIPTables  = "iptables"  // the host has the program iptables
	DetectedNative    = "native"    // the host has no program iptables
	DetectedFirewalld = "firewalld" // a firewalld runs; the addresses go to its zone
)

// ErrHostPortTaken means that a port of the host is forwarded to another
// attachment already, which the error names.
var ErrHostPortTaken = errors.New("the host port is taken")

// ErrOnlyIPTables means that only the backend [IPTables] can do something.
var ErrOnlyIPTables = errors.New(`only the backend "iptables" can do that`)

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

	// The other fields are for IPTables alone; Native and NFTables refuse them.
	// ConditionsV4 and ConditionsV6 are also for NFTables, in nft's syntax.
	ConditionsV4, ConditionsV6 []string
	ExternalSetMarkChain       string // empty: portmap's own chain marks
	// MarkMasqBit is 0 to 31. The other backends mark no packets, and do not look
	// at it, as portmap always has one.
	MarkMasqBit int
}

// Forward lets the host forward the container's packets under any policy.
//
// Only IPTables can do that: an accepting rule in one table of nftables does not
// keep another table from dropping the packet. Native has the ingress policies
// only, and a host that drops forwarded packets needs IPTables. NFTables refuses it, as the reference plugin has no such form.
type Forward struct {
	Owner
	Addresses []netip.Addr
	// AdminChain is the chain of IPTables in which an administrator's rules go
	// first; empty means CNI-ADMIN.
	AdminChain string
	// Ingress is the policy for packets from other bridges: empty or "open",
	// "isolated", or "same-bridge"; Bridge is then the container's.
	Ingress, Bridge string
	// IngressOnly makes IPTables create the ingress policy alone, for the
	// families of the addresses. firewalld then accepts the packets of the
	// addresses.
	IngressOnly bool
}

// Rules are the rules of an attachment in one backend.
type Rules struct {
	Masquerade []Masquerade
	HostPorts  []HostPorts
	Forward    []Forward
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
	// Rules are the rules of those on the same network, in the forms of the
	// reference plugins.
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
	// Backend and Rules are the part to make again, with the Restore of
	// netfilter.Firewalls, which adds only missing rules. In IPTables, a port
	// comes with the other ports of its HostPorts, since they share rules.
	Backend Backend
	Rules   Rules
	Object  string // "masquerading of 10.1.0.2", "tcp 8080"
	Found   string // the rule in its place that must not be replaced; empty if there is none
	Err     error  // the error of a Check, an [ErrMissing]
}

// SpoofCheck stands for the rules that drop frames a container sends with another MAC
// address than its own. They are in nftables, whatever the backend of other rules.
type SpoofCheck struct {
	ContainerID, IfName string
	Port                string // the interface's end on the bridge
	MAC                 net.HardwareAddr
}
