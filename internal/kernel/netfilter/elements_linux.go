package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// elementsOf returns the elements that are the rules, each once, in an
// order that does not depend on that of the rules.
func elementsOf(rules []Rule) (all []element, err error) {
	for _, r := range rules {
		some, err := r.elements()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Kind, err)
		}
		all = append(all, some...)
	}
	return eachKeyOnce(all)
}

// eachKeyOnce returns the elements sorted, each once. Two cannot have one key.
func eachKeyOnce(all []element) ([]element, error) {
	slices.SortFunc(all, compareElements)
	all = slices.Compact(all)
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; keyOf(a) == keyOf(b) {
			return nil, fmt.Errorf("%v and %v exclude each other: %w", elementText(a), elementText(b), ErrHostPortTaken)
		}
	}
	return all, nil
}

// elements returns the elements of the rule. Accept has none.
func (r Rule) elements() (all []element, err error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	switch r.Kind {
	case Ingress:
		return r.ingressElements()
	case Spoof:
		return r.spoofElements()
	case Publish:
		if r.Conditional {
			return nil, fmt.Errorf("conditions: %w", ErrOnlyExecutable)
		}
	case Accept:
		return nil, nil
	}
	for _, p := range r.Addresses {
		p, err := PlainPrefix(p)
		if err != nil {
			return nil, err
		}
		addr, comment := p.Addr(), r.Comment()
		if r.Kind == Masquerade {
			all = append(all, element{Set: perFamily("containers", addr), Key: keyAddr(addr), Comment: comment}, pairElement(subnetsPrefix, p, p, comment))
			continue
		}
		e, ok, err := portKey(r.Port, addr.Is4())
		if err != nil {
			return nil, err
		}
		if ok {
			e.Value, e.Comment = keyAddr(addr)+keyPort(r.Port.ContainerPort), comment
			all = append(append(all, e), r.hairpinElements(p)...)
		}
	}
	return all, nil
}

// pairElement says that the container at an address and the network belong together.
func pairElement(prefix string, container, network netip.Prefix, comment string) element {
	addr := container.Addr()
	e := element{
		Set: perFamily(prefix, addr) + "_" + strconv.Itoa(network.Bits()),
		Key: keyAddr(addr), Comment: comment,
	}
	if network.Bits() > 0 {
		e.Key += keyAddr(network.Masked().Addr())
	}
	return e
}

// portKey returns the element for a port without its value, or false if the port
// is not forwarded in the family.
func portKey(p HostPort, v4 bool) (element, bool, error) {
	host, protocol, ok, err := p.Match(v4)
	if err != nil || !ok {
		return element{}, false, err
	}
	family := "6"
	if v4 {
		family = "4"
	}
	if !host.IsValid() {
		return element{Set: "hostports" + family, Key: keyProtocol(protocol) + keyPort(p.HostPort)}, true, nil
	}
	return element{Set: "hostips" + family, Key: keyProtocol(protocol) + keyAddr(host) + keyPort(p.HostPort)}, true, nil
}

// hairpinElements returns the elements for packets whose answers would not pass
// through the host again: those from the container's own subnet, where the answer
// goes straight to the neighbour, and those from addresses that mean another host
// in the container.
func (r Rule) hairpinElements(to netip.Prefix) []element {
	switch {
	case !r.SNAT:
		return nil
	case r.MasqAll:
		return []element{pairElement(hairpinPrefix, to, netip.PrefixFrom(to.Addr(), 0), r.Comment())}
	}
	all := []element{pairElement(hairpinPrefix, to, to, r.Comment())}
	if to.Addr().Is4() {
		all = append(all, pairElement(hairpinPrefix, to, loopback4(), r.Comment()))
	}
	return all
}

func loopback4() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }

// ingressElements returns the elements of the bridge's policy. They have no owner,
// as they are for all containers on the bridge.
func (r Rule) ingressElements() ([]element, error) {
	pair := "isolated"
	switch r.Policy {
	case "same-bridge":
		pair = "same_bridge"
	case "isolated":
	default:
		return nil, fmt.Errorf("ingressPolicy %q is none of open, same-bridge and isolated", r.Policy)
	}
	link, err := nft.InterfaceName(r.Bridge)
	if err != nil {
		return nil, fmt.Errorf("ingressPolicy %s: %w", r.Policy, err)
	}
	return []element{{Set: "bridges", Key: link}, {Set: pair, Key: link + link}}, nil
}

func (r Rule) spoofElements() ([]element, error) {
	link, err := nft.InterfaceName(r.Link)
	if err == nil && len(r.MAC) != 6 {
		err = fmt.Errorf("hardware address %q has not 6 bytes", r.MAC)
	}
	if err != nil {
		return nil, err
	}
	return []element{
		{Set: portsSet, Key: link, Comment: r.Comment()},
		{Set: sendersSet, Key: link + string(r.MAC) + "\x00\x00", Comment: r.Comment()},
	}, nil
}
