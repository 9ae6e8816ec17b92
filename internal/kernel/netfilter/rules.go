package netfilter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// The results of looking for the packet filter that decides on a host.
const (
	DetectedIPTables  = "iptables"  // the host has the program iptables
	DetectedNative    = "native"    // the host has no program iptables
	DetectedFirewalld = "firewalld" // a firewalld runs; the addresses go to its zone
)

var (
	// ErrHostPortTaken means that a port of the host is forwarded to another
	// attachment already, which the error names.
	ErrHostPortTaken = errors.New("the host port is taken")

	// ErrInPlace means that a missing rule was not added: another one is in its place,
	// which must not be replaced.
	ErrInPlace = errors.New("another rule is in its place")

	// ErrOnlyExecutable means that only the rules of the reference plugins can do something.
	ErrOnlyExecutable = errors.New("only the plugin's executable makes such rules")

	// ErrIncompleteTarget means that an owner or a target does not name its attachment.
	ErrIncompleteTarget = errors.New("a target needs a network, a container ID and an interface name")
)

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

// Kind is what a rule does.
type Kind string

// The kinds of rules. Their texts begin errors.
const (
	// Masquerade gives packets that the container sends out of the subnet of its address
	// the address of the host.
	Masquerade Kind = "masquerade"
	// Publish forwards a port of the host to the container.
	Publish Kind = "host ports"
	// Accept lets the host forward the packets of the whole subnet of the address, for all
	// containers of the network, under any policy.
	Accept Kind = "forwarding"
	// Ingress is the policy for packets from other bridges.
	Ingress Kind = "firewall"
	// Spoof drops the frames that the container sends with another MAC address than its own.
	Spoof Kind = "check of the MAC address"
)

// Rule is one effect that an attachment has in the packet filter, whatever makes it. It can
// be missing by itself.
type Rule struct {
	Owner
	Kind Kind

	// Addresses are the container's, each with the length of its subnet: of Masquerade and
	// Accept one, of Publish one of a family at most, of Ingress all. They need not be known
	// to remove the rule.
	Addresses []netip.Prefix

	// Of Publish. SNAT masquerades packets whose answers would not pass through the host
	// again: from the container to itself, and from the host's loopback addresses. MasqAll
	// masquerades all other packets to the port, too. Only the reference plugins make
	// conditional rules.
	Port                       HostPort
	SNAT, MasqAll, Conditional bool

	// Of Accept: the chain of iptables in which an administrator's rules go first; empty
	// means CNI-ADMIN.
	AdminChain string

	// Of Ingress: "isolated", or "same-bridge", and the container's bridge.
	Policy, Bridge string

	// Of Spoof: the interface's end on the bridge, and its address. They need not be known
	// to remove the rule.
	Link string
	MAC  net.HardwareAddr
}

// PerAddress returns a rule of the kind for each of the owner's addresses, or one without
// an address.
func (o Owner) PerAddress(kind Kind, addrs []netip.Prefix) (all []Rule) {
	for _, a := range addrs {
		all = append(all, Rule{Owner: o, Kind: kind, Addresses: []netip.Prefix{a}})
	}
	if len(all) == 0 {
		all = []Rule{{Owner: o, Kind: kind}}
	}
	return all
}

// Object names the rule among those of its attachment: "tcp 8080", or "tcp 192.0.2.1:8080".
func (r Rule) Object() string {
	switch p := r.Port; {
	case r.Kind == Masquerade:
		return "masquerading of " + r.address()
	case r.Kind == Accept:
		return "forwarding for " + r.address()
	case r.Kind == Ingress:
		return fmt.Sprintf("ingress policy %s of %s", r.Policy, r.Bridge)
	case r.Kind == Spoof:
		return string(r.Kind)
	case !p.HostIP.IsValid() || p.HostIP.IsUnspecified():
		return fmt.Sprintf("%s %d", p.Protocol, p.HostPort)
	default:
		return fmt.Sprintf("%s %v", p.Protocol, netip.AddrPortFrom(p.HostIP.Unmap(), p.HostPort))
	}
}

// Accepted is the effect of a rule of kind Accept.
const Accepted = "accepted"

// Effect says what the rule does: for a port, the container's addresses and the port that it
// leads to, "10.1.0.2:80, [fd00::2]:80".
func (r Rule) Effect() string {
	switch r.Kind {
	case Accept:
		return Accepted
	case Ingress:
		return r.Policy
	case Publish:
		var to []string
		for _, p := range r.Addresses {
			if _, _, ok, err := r.Port.Match(p.Addr().Is4()); err == nil && ok {
				to = append(to, netip.AddrPortFrom(p.Addr(), r.Port.ContainerPort).String())
			}
		}
		return strings.Join(to, ", ")
	}
	return r.Object()
}

func (r Rule) address() string {
	if len(r.Addresses) == 0 {
		return "unknown addresses"
	}
	return r.Addresses[0].Addr().Unmap().String()
}

// Missing is a rule that does not exist, or is not as the ADD made it.
type Missing struct {
	Rule         // to make again, with the Restore of Firewalls
	Found string // the rule in its place that must not be replaced; empty if there is none
	Why   string // why it cannot be made again otherwise
	Err   error  // the error of a CHECK
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
	number, ok := map[string]byte{"tcp": 6, "udp": 17, "sctp": 132}[name]
	if !ok {
		return 0, fmt.Errorf("protocol %q is none of tcp, udp and sctp", name)
	}
	return number, nil
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
	Rules []Rule
	// Unknown means that Rules may be incomplete: those of a sibling could not
	// be computed.
	Unknown bool
}

// Have reports whether the comment is that of a sibling.
func (s Siblings) Have(comment string) bool {
	return slices.ContainsFunc(s.Owners, func(o Owner) bool { return o.Comment() == comment })
}

// Target is the attachment whose rules are looked for.
type Target struct {
	Owner

	// Addresses are the container's on this network. They may be unknown; then
	// the rules of the plugin firewall, which name nothing but addresses, stay.
	Addresses []netip.Addr

	// InUse are addresses that other attachments, on any network, have now. The
	// plugin firewall makes one rule for an address, for all attachments that have
	// it; the rule stays if the address is in InUse. Addresses of the container's
	// other attachments belong in Siblings.
	InUse []netip.Addr

	// Siblings are the container's other attachments. Names do not distinguish them:
	// portmap's in nftables have the container alone, and those in iptables the container
	// and the network. A rule about one of their addresses stays, with its chain. Own are the
	// rules of the attachment. In a chain that they share, rules of Own go and those of
	// Siblings stay, where the addresses do not decide. Only Masquerade and Publish matter.
	Siblings Siblings
	Own      []Rule

	// Ports are the ports of the host that were forwarded to the container. In
	// this module's table a port is looked for by its number.
	Ports []HostPort

	// Subnets are those whose packets the host forwards for the attachment's network,
	// and InNetwork reports whether another attachment needs that for one of them; nil:
	// none does.
	Subnets   []netip.Prefix
	InNetwork func(netip.Prefix) (bool, error)

	// Thorough looks at every element of this module's table, which takes about 100 ms
	// with ten thousand containers. It finds elements of addresses and ports that
	// are not known. It is the only way without Addresses, and then used anyway.
	Thorough bool
}

// Normal returns the target with its addresses in the form that rules have them in, and
// with InNetwork.
func (t Target) Normal() (Target, error) {
	if err := t.Validate(); err != nil {
		return t, err
	}
	for _, list := range []*[]netip.Addr{&t.Addresses, &t.InUse, &t.Siblings.Addresses} {
		var addrs []netip.Addr
		for _, a := range *list {
			if !a.IsValid() {
				return t, errors.New("a target has an invalid address")
			}
			if a = a.Unmap().WithZone(""); !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
		*list = addrs
	}
	if t.InNetwork == nil {
		t.InNetwork = nobodyNeeds
	}
	return t, nil
}

func nobodyNeeds(netip.Prefix) (bool, error) { return false, nil }
