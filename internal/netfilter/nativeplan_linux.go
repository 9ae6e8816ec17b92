package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// errOnlyIPTables is for what a backend cannot do that iptables can.
var errOnlyIPTables = errors.New(`only the backend "iptables" can do that`)

// nativeElements returns the elements that are the rules, each once, in an
// order that does not depend on that of the rules.
func nativeElements(r Rules) ([]element, error) {
	var all []element
	for _, m := range r.Masquerade {
		some, err := m.elements()
		if err != nil {
			return nil, fmt.Errorf("masquerade: %w", err)
		}
		all = append(all, some...)
	}
	for _, h := range r.HostPorts {
		some, err := h.elements()
		if err != nil {
			return nil, fmt.Errorf("host ports: %w", err)
		}
		all = append(all, some...)
	}
	for _, f := range r.Forward {
		some, err := f.elements()
		if err != nil {
			return nil, fmt.Errorf("firewall: %w", err)
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, compareElements)
	all = slices.Compact(all)
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.Set == b.Set && a.Key == b.Key {
			return nil, fmt.Errorf("%v and %v exclude each other: %w", elementText(a), elementText(b), ErrHostPortTaken)
		}
	}
	return all, nil
}

func (o Owner) comment() string { return masqueradeComment(o.Network, o.IfName, o.ContainerID) }

// validate fails unless the owner is known, as elements are found by it.
func (o Owner) validate() error {
	if o.Network == "" || o.ContainerID == "" || o.IfName == "" {
		return fmt.Errorf("%w, got %q, %q and %q", ErrIncompleteTarget, o.Network, o.ContainerID, o.IfName)
	}
	return nil
}

func (m Masquerade) elements() ([]element, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	var all []element
	for _, p := range m.Addresses {
		p, err := plainPrefix(p)
		if err != nil {
			return nil, err
		}
		addr := p.Addr()
		all = append(all,
			element{Set: perFamily("containers", addr), Key: keyAddr(addr), Comment: m.comment()},
			pairElement(subnetsPrefix, addr, p.Masked(), m.comment()))
	}
	return all, nil
}

// plainPrefix returns it without the forms that are not in a packet.
func plainPrefix(p netip.Prefix) (netip.Prefix, error) {
	a := p.Addr()
	if a.Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96), nil
	}
	if !p.IsValid() || a.Is4In6() {
		return p, fmt.Errorf("address %v is not valid", p)
	}
	return p, nil
}

// pairElement says that the container at addr and the network belong together.
func pairElement(prefix string, addr netip.Addr, network netip.Prefix, comment string) element {
	e := element{
		Set: perFamily(prefix, addr) + "_" + strconv.Itoa(network.Bits()),
		Key: keyAddr(addr), Comment: comment,
	}
	if network.Bits() > 0 {
		e.Key += keyAddr(network.Addr())
	}
	return e
}

func (h HostPorts) elements() ([]element, error) {
	if err := h.validate(); err != nil {
		return nil, err
	}
	switch {
	case len(h.ConditionsV4) > 0:
		return nil, fmt.Errorf("conditionsV4: %w", errOnlyIPTables)
	case len(h.ConditionsV6) > 0:
		return nil, fmt.Errorf("conditionsV6: %w", errOnlyIPTables)
	case h.ExternalSetMarkChain != "":
		return nil, fmt.Errorf("externalSetMarkChain: %w", errOnlyIPTables)
	}
	var all []element
	for _, to := range []netip.Prefix{h.V4, h.V6} {
		if to == (netip.Prefix{}) {
			continue
		}
		to, err := plainPrefix(to)
		if err != nil {
			return nil, err
		}
		some, err := h.forwarded(to.Addr())
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); h.SNAT && len(some) > 0 {
			all = append(all, h.returning(to)...)
		}
	}
	return all, nil
}

// forwarded are the elements for the ports of one family.
func (h HostPorts) forwarded(to netip.Addr) ([]element, error) {
	var all []element
	for _, p := range h.Ports {
		key, ok, err := p.key(to.Is4())
		if err != nil {
			return nil, err
		}
		if ok {
			key.Value, key.Comment = keyAddr(to)+keyPort(p.ContainerPort), h.comment()
			all = append(all, key)
		}
	}
	return all, nil
}

// key returns the element without its value. It is false if the port is not one
// of the family.
func (p HostPort) key(v4 bool) (element, bool, error) {
	protocol, err := protocolNumber(p.Protocol)
	if err != nil {
		return element{}, false, fmt.Errorf("host port %d: %w", p.HostPort, err)
	}
	if p.HostPort == 0 {
		return element{}, false, errors.New("host port 0 cannot be forwarded")
	}
	host := p.HostIP.Unmap().WithZone("")
	if host.IsValid() && host.Is4() != v4 {
		return element{}, false, nil
	}
	family := "6"
	if v4 {
		family = "4"
	}
	if !host.IsValid() || host.IsUnspecified() {
		return element{Set: "hostports" + family, Key: keyProtocol(protocol) + keyPort(p.HostPort)}, true, nil
	}
	return element{Set: "hostips" + family, Key: keyProtocol(protocol) + keyAddr(host) + keyPort(p.HostPort)}, true, nil
}

// returning are the elements for what would come back past the host: from the
// container's own subnet, where it would be sent straight to the neighbour who
// knows nothing of it, and from addresses that mean another host there.
func (h HostPorts) returning(to netip.Prefix) []element {
	addr, comment := to.Addr(), h.comment()
	if h.MasqAll {
		return []element{pairElement(hairpinPrefix, addr, netip.PrefixFrom(addr, 0).Masked(), comment)}
	}
	all := []element{pairElement(hairpinPrefix, addr, to.Masked(), comment)}
	if addr.Is4() {
		all = append(all, pairElement(hairpinPrefix, addr, loopback4(), comment))
	}
	return all
}

func loopback4() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }

// elements are those of the bridge. They have no owner, as they are for all
// that are on it.
func (f Forward) elements() ([]element, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	if f.AdminChain != "" {
		return nil, fmt.Errorf("iptablesAdminChainName: %w", errOnlyIPTables)
	}
	pair := "isolated"
	switch f.Ingress {
	case "", "open":
		return nil, nil
	case "same-bridge":
		pair = "same_bridge"
	case "isolated":
	default:
		return nil, fmt.Errorf("ingressPolicy %q is none of open, same-bridge and isolated", f.Ingress)
	}
	link, err := keyLink(f.Bridge)
	if err != nil {
		return nil, fmt.Errorf("ingressPolicy %s: %w", f.Ingress, err)
	}
	return []element{{Set: "bridges", Key: link}, {Set: pair, Key: link + link}}, nil
}
