package native

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// elementsOf returns the elements that are the rules, each once, in an
// order that does not depend on that of the rules.
func elementsOf(r fwrules.Rules) ([]element, error) {
	var all []element
	err := cmp.Or(
		addElements(&all, "masquerade", r.Masquerade, masqueradeElements),
		addElements(&all, "host ports", r.HostPorts, hostPortElements),
		addElements(&all, "firewall", r.Forward, ingressElements),
		addElements(&all, "check of the MAC address", r.Spoof, spoofElements),
	)
	if err != nil {
		return nil, err
	}
	return once(all)
}

// addElements adds the elements of the rules of one kind.
func addElements[R interface{ Validate() error }](all *[]element, kind string, rules []R, of func(R) ([]element, error)) error {
	for _, r := range rules {
		err := r.Validate()
		if err == nil {
			var some []element
			some, err = of(r)
			*all = append(*all, some...)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

// once returns the elements sorted, each once. Two cannot have one key.
func once(all []element) ([]element, error) {
	slices.SortFunc(all, compareElements)
	all = slices.Compact(all)
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.Set == b.Set && a.Key == b.Key {
			return nil, fmt.Errorf("%v and %v exclude each other: %w", elementText(a), elementText(b), fwrules.ErrHostPortTaken)
		}
	}
	return all, nil
}

func masqueradeElements(m fwrules.Masquerade) ([]element, error) {
	var all []element
	for _, p := range m.Addresses {
		p, err := fwrules.PlainPrefix(p)
		if err != nil {
			return nil, err
		}
		addr := p.Addr()
		all = append(all,
			element{Set: perFamily("containers", addr), Key: keyAddr(addr), Comment: m.Comment()},
			pairElement(subnetsPrefix, addr, p.Masked(), m.Comment()))
	}
	return all, nil
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

func hostPortElements(h fwrules.HostPorts) ([]element, error) {
	if len(h.ConditionsV4)+len(h.ConditionsV6) > 0 {
		return nil, fmt.Errorf("conditions: %w", fwrules.ErrOnlyExecutable)
	}
	var all []element
	for _, to := range []netip.Prefix{h.V4, h.V6} {
		if to == (netip.Prefix{}) {
			continue
		}
		to, err := fwrules.PlainPrefix(to)
		if err != nil {
			return nil, err
		}
		some, err := forwardedElements(h, to.Addr())
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); h.SNAT && len(some) > 0 {
			all = append(all, hairpinElements(h, to)...)
		}
	}
	return all, nil
}

// forwardedElements returns the elements for the ports of one family.
func forwardedElements(h fwrules.HostPorts, to netip.Addr) ([]element, error) {
	var all []element
	for _, p := range h.Ports {
		key, ok, err := portKey(p, to.Is4())
		if err != nil {
			return nil, err
		}
		if ok {
			key.Value, key.Comment = keyAddr(to)+keyPort(p.ContainerPort), h.Comment()
			all = append(all, key)
		}
	}
	return all, nil
}

// portKey returns the element for a port without its value, or false if the port
// is not forwarded in the family.
func portKey(p fwrules.HostPort, v4 bool) (element, bool, error) {
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
func hairpinElements(h fwrules.HostPorts, to netip.Prefix) []element {
	addr, comment := to.Addr(), h.Comment()
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

// ingressElements returns the elements of the bridge's policy. They have no owner,
// as they are for all containers on the bridge.
func ingressElements(f fwrules.Forward) ([]element, error) {
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
	link, err := nft.InterfaceName(f.Bridge)
	if err != nil {
		return nil, fmt.Errorf("ingressPolicy %s: %w", f.Ingress, err)
	}
	return []element{{Set: "bridges", Key: link}, {Set: pair, Key: link + link}}, nil
}

func spoofElements(s fwrules.SpoofCheck) ([]element, error) {
	link, err := nft.InterfaceName(s.Port)
	if err == nil && len(s.MAC) != 6 {
		err = fmt.Errorf("hardware address %q has not 6 bytes", s.MAC)
	}
	if err != nil {
		return nil, err
	}
	return []element{
		{Set: portsSet, Key: link, Comment: s.Comment()},
		{Set: sendersSet, Key: link + string(s.MAC) + "\x00\x00", Comment: s.Comment()},
	}, nil
}
