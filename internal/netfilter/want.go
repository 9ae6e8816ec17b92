package netfilter

import (
	"context"
	"errors"
	"net/netip"
)

// Backend is where the rules of an attachment are, and in which form.
type Backend string

const (
	// Native is nftables, in sets and maps of a table of this module's own: a
	// packet and a change cost the same however many containers there are. It
	// is what is used when a configuration names no backend. The package's
	// documentation describes the table.
	//
	// An address belongs to one attachment at a time: an ADD takes over what
	// another one has left with the address, and the late DEL of that one leaves
	// it alone. A port of the host belongs to the first container that asks for
	// it. The ADD of another container fails with [ErrHostPortTaken]; one of the
	// same container leaves the port as it is, see [Siblings].
	Native Backend = ""
	// IPTables and NFTables are the forms of the reference plugins, which can
	// check and delete what is written here, and the other way round.
	//
	// In NFTables an ADD looks for nothing, so that a second one for the same
	// attachment makes second copies, which do no harm and go with the first.
	// Conditions are the table's, as with the reference plugin: those that came
	// last are for all containers. Beyond the reference plugin it has MasqAll.
	IPTables Backend = "iptables"
	NFTables Backend = "nftables"
)

// ErrHostPortTaken means that a port of the host is forwarded to another
// attachment already, which the error names.
var ErrHostPortTaken = errors.New("the host port is taken")

// Owner is the attachment that rules belong to. All three are set.
type Owner struct {
	Network, ContainerID, IfName string
}

// Masquerade has what the container sends out of the subnets of its addresses
// leave with the address of the host.
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

// HostPorts forwards ports of the host to the container.
type HostPorts struct {
	Owner
	// V4 and V6 are the addresses that ports are forwarded to, with the length
	// of their subnet; a zero Prefix means that the container has none.
	V4, V6 netip.Prefix
	Ports  []HostPort
	// SNAT masquerades what would come back past the host: from the container
	// to itself, and from the host's loopback addresses.
	SNAT    bool
	MasqAll bool // and all else that goes to a forwarded port

	// The rest is for IPTables alone; Native and NFTables refuse it. For
	// ConditionsV4 and ConditionsV6, NFTables takes text of nft's syntax.
	ConditionsV4, ConditionsV6 []string
	ExternalSetMarkChain       string // empty: portmap's own chain marks
	// MarkMasqBit is 0 to 31. The other backends mark no packets, and do not look
	// at it, as portmap always has one.
	MarkMasqBit int
}

// Forward lets the container's packets be forwarded, whatever the policy is.
//
// That is so with IPTables alone: an accepting rule in one table of nftables
// does not keep another table from dropping the packet, so Native has nothing
// but the ingress policies, and a host that drops what it forwards needs
// IPTables. NFTables refuses it, as the reference plugin has no such form.
type Forward struct {
	Owner
	Addresses []netip.Addr
	// AdminChain is the chain of IPTables in which an administrator's rules go
	// first; empty means CNI-ADMIN.
	AdminChain string
	// Ingress is the policy for what comes from other bridges: empty or "open",
	// "isolated", or "same-bridge"; Bridge is then the container's.
	Ingress, Bridge string
	// IngressOnly makes IPTables create the ingress policy alone, for the
	// families of the addresses. firewalld then accepts the packets of the
	// addresses.
	IngressOnly bool
}

// Rules are what an attachment wants of one backend.
type Rules struct {
	Masquerade []Masquerade
	HostPorts  []HostPorts
	Forward    []Forward
}

// writer is a backend. Each call is for the network namespace of the calling
// thread.
type writer interface {
	// add makes the rules, all or none. It can be repeated.
	add(ctx context.Context, r Rules) error
	// remove deletes what add has made. What is gone is fine, and what can no
	// longer be computed, as addresses that are unknown, is looked for.
	remove(ctx context.Context, r Rules) error
	// check returns an error that names the first rule that is not there.
	check(ctx context.Context, r Rules) error
}
