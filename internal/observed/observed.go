// Package observed decides which addresses a container has now, by its namespace, beside
// those that its ADD reported: SLAAC and DHCP assign addresses later, and change them.
//
//	result of the ADD + namespace ─► In ─► record.Observed ─► Apply ─► result for callers
//
// There is no kernel in it, but for Read.
package observed

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/record"
)

// Interface is an interface in a container's namespace.
type Interface struct {
	Addresses []netip.Prefix // those in use: not tentative, nor duplicates of another machine's
	Gateways  []netip.Addr   // of its default routes, the preferred ones first
}

// MissingError means that a container lacks an interface.
type MissingError struct{ Name string }

func (e *MissingError) Error() string { return fmt.Sprintf("there is no interface %s", e.Name) }

// In returns the addresses that the interfaces of an attachment have in the namespace:
// first those of the ADD that are still there, with the gateways that it reported, then
// others, with the gateway of a default route. Loopback and link-local addresses, which
// every interface can have, count only if the ADD reported them.
func In(namespace map[string]Interface, result *types100.Result, ifName string) ([]record.ObservedAddress, error) {
	var all []record.ObservedAddress
	for _, t := range targets(result, ifName) {
		now, ok := namespace[t.name]
		if !ok {
			return nil, &MissingError{t.name}
		}
		var reported []netip.Addr
		for _, ip := range result.IPs {
			addr, ok := netip.AddrFromSlice(ip.Address.IP)
			if !ok || !t.has(ip) {
				continue
			}
			addr = addr.Unmap()
			reported = append(reported, addr)
			i := slices.IndexFunc(now.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
			if i >= 0 {
				gateway, _ := netip.AddrFromSlice(ip.Gateway) // the zero Addr if there is none
				all = append(all, record.ObservedAddress{Interface: t.name, Prefix: prefixOf(ip.Address, now.Addresses[i]), Gateway: gateway.Unmap()})
			}
		}
		for _, p := range now.Addresses {
			addr := p.Addr()
			if slices.Contains(reported, addr) || addr.IsLoopback() || addr.IsLinkLocalUnicast() {
				continue
			}
			all = append(all, record.ObservedAddress{Interface: t.name, Prefix: p, Gateway: now.gateway(addr)})
		}
	}
	return all, nil
}

// prefixOf returns an address with the length that the ADD reported, or if that is none
// with the kernel's.
func prefixOf(reported net.IPNet, kernel netip.Prefix) netip.Prefix {
	ones, bits := reported.Mask.Size()
	if bits != kernel.Addr().BitLen() {
		return kernel
	}
	return netip.PrefixFrom(kernel.Addr(), ones)
}

// gateway returns the preferred gateway of the address's family.
func (i Interface) gateway(addr netip.Addr) netip.Addr {
	for _, g := range i.Gateways {
		if g.Is4() == addr.Is4() {
			return g
		}
	}
	return netip.Addr{}
}

// target is an interface of an attachment in the container.
type target struct {
	name  string
	index *int // in the result's list; nil if that is empty
}

// targets returns the attachment's interfaces in the container: those in a sandbox, or
// without any the one with the name that was asked for. Results before CNI 0.3.0 list no
// interfaces.
func targets(result *types100.Result, ifName string) (all []target) {
	for i, of := range result.Interfaces {
		if of.Sandbox != "" {
			all = append(all, target{of.Name, &i})
		}
	}
	if all != nil {
		return all
	}
	if len(result.Interfaces) == 0 {
		return []target{{ifName, nil}}
	}
	for i, of := range result.Interfaces {
		if of.Name == ifName {
			return []target{{ifName, &i}}
		}
	}
	return nil
}

// has reports whether the interface has an address of the result.
func (t target) has(ip *types100.IPConfig) bool {
	if t.index == nil || ip.Interface == nil {
		return t.index == nil && ip.Interface == nil
	}
	return *ip.Interface == *t.index
}

// Apply returns the result with the observed addresses in place of those that the ADD
// reported for the interfaces in the container. Without observed addresses it is the
// result itself.
func Apply(result *types100.Result, ifName string, o *record.Observed) *types100.Result {
	if result == nil || o == nil {
		return result
	}
	all := targets(result, ifName)
	now := *result
	now.IPs = nil
	for _, ip := range result.IPs {
		if !slices.ContainsFunc(all, func(t target) bool { return t.has(ip) }) {
			now.IPs = append(now.IPs, ip)
		}
	}
	for _, a := range o.Addresses {
		i := slices.IndexFunc(all, func(t target) bool { return t.name == a.Interface })
		if i < 0 {
			continue
		}
		ip := &types100.IPConfig{
			Interface: all[i].index,
			Address:   net.IPNet{IP: a.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(a.Prefix.Bits(), a.Prefix.Addr().BitLen())},
		}
		if a.Gateway.IsValid() {
			ip.Gateway = a.Gateway.AsSlice()
		}
		now.IPs = append(now.IPs, ip)
	}
	return &now
}
