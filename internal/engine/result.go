package engine

import (
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// address is an address of a result with its prefix, and the gateway, if there is one.
type address struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
}

// newAddress converts an address. A missing or impossible prefix length, as in results
// built by hand, becomes that of a single host.
func NewAddress(n net.IPNet, gateway net.IP) address {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return address{}
	}
	bits, size := n.Mask.Size()
	if size != 128 || bits >= 96 { // ::ffff:10.0.0.1/64 is nothing as IPv4
		ip = ip.Unmap()
	}
	switch {
	case size == 128 && bits >= 96 && ip.Is4():
		bits -= 96
	case size != ip.BitLen():
		bits = ip.BitLen()
	}
	a := address{Prefix: netip.PrefixFrom(ip, bits)}
	if gw, ok := netip.AddrFromSlice(gateway); ok {
		a.Gateway = gw.Unmap()
	}
	return a
}

// holder returns the index of the interface that has an address: the one that it names, or
// the network's own, inside the container rather than on the host. Without either it is the
// number of interfaces.
func Holder(result *types100.Result, ip *types100.IPConfig, ifName string) int {
	if ip.Interface != nil {
		return *ip.Interface
	}
	for _, inside := range []bool{true, false} {
		i := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool {
			return i.Name == ifName && (i.Sandbox != "" || !inside)
		})
		if i >= 0 {
			return i
		}
	}
	return len(result.Interfaces)
}

// containerAddresses returns the addresses in a result of the interfaces inside the
// container; all if no interface with an address is inside.
func ContainerAddresses(result *types100.Result, ifName string) []address {
	var inside, all []address
	for i := 0; i <= len(result.Interfaces); i++ {
		for _, ip := range result.IPs {
			if Holder(result, ip, ifName) != i {
				continue
			}
			a := NewAddress(ip.Address, ip.Gateway)
			all = append(all, a)
			if i < len(result.Interfaces) && result.Interfaces[i].Sandbox != "" {
				inside = append(inside, a)
			}
		}
	}
	if inside != nil {
		return inside
	}
	return all
}

func Union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
