package fwrules

import (
	"context"
	"errors"
	"net/netip"
	"slices"
)

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

	// Siblings are the addresses of the container's other attachments. Names do not
	// distinguish them: portmap's in nftables have the container alone, and those in
	// iptables the container and the network. A rule about one of these addresses
	// stays, with its chain.
	Siblings []netip.Addr

	// Own are the rules of the attachment, and Kept those of its siblings. In a
	// chain that they share, rules of Own go and rules of Kept stay, where the
	// addresses do not decide. KeptUnknown means that a sibling's rules are not
	// known. Only Masquerade and HostPorts matter.
	Own, Kept   Rules
	KeptUnknown bool

	// Ports are the ports of the host that were forwarded to the container. In
	// the native table a port is looked for by its number.
	Ports []HostPort

	// Subnets are those whose packets the host forwards for the attachment's network,
	// and InNetwork reports whether another attachment needs that for one of them; nil:
	// none does.
	Subnets   []netip.Prefix
	InNetwork func(netip.Prefix) (bool, error)

	// Thorough looks at every element of the native table, which takes about 100 ms
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
	for _, list := range []*[]netip.Addr{&t.Addresses, &t.InUse, &t.Siblings} {
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
		t.InNetwork = func(netip.Prefix) (bool, error) { return false, nil }
	}
	return t, nil
}

// Found are rules of a target that exist in one packet filter.
type Found interface {
	// Lines are commands that would delete them, in order.
	Lines() []string
	// Apply deletes them. It passes over rules that are gone.
	Apply(ctx context.Context) error
}
