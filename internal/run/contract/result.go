package contract

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/plugin"
)

// A CHECK gets the result of the whole chain, with the changes that later plugins report,
// and the interfaces and addresses that they added.

// Reported returns the container's interface in the previous result, or an
// error if it has none. Several paths may lead to the container's namespace, so
// an interface in another sandbox is accepted if it is the only one of its name:
// the kernel shows whether it exists.
func Reported(r *plugin.Request) (*types100.Interface, error) {
	if r.PrevResult == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "prevResult is missing: there is nothing to check against")
	}
	var named []*types100.Interface
	for _, i := range r.PrevResult.Interfaces {
		if i == nil || i.Name != r.IfName || i.Sandbox == "" {
			continue
		}
		if i.Sandbox == r.NetNS {
			return i, nil
		}
		named = append(named, i)
	}
	if len(named) != 1 {
		return nil, fmt.Errorf("prevResult has no interface %q in %s", r.IfName, r.NetNS)
	}
	return named[0], nil
}

// OnHost returns the first interface of the host in the previous result that has one of
// the names, or nil.
func OnHost(r *plugin.Request, names ...string) *types100.Interface {
	if r.PrevResult == nil {
		return nil
	}
	for _, i := range r.PrevResult.Interfaces {
		if i != nil && i.Sandbox == "" && slices.Contains(names, i.Name) {
			return i
		}
	}
	return nil
}

// OwnResult returns the previous result without the addresses of other interfaces,
// which a later plugin may have made. An address without an interface belongs to
// the container.
func OwnResult(r *plugin.Request) *types100.Result {
	own := *r.PrevResult
	own.IPs = nil
	for _, ip := range r.PrevResult.IPs {
		if ip == nil || ip.Interface != nil && !names(r.PrevResult, *ip.Interface, r.IfName) {
			continue
		}
		own.IPs = append(own.IPs, ip)
	}
	return &own
}

// AddressesOf returns the addresses of a result, which may be nil.
func AddressesOf(result *types100.Result) (all []netip.Addr) {
	for _, p := range PrefixesOf(result) {
		all = append(all, p.Addr())
	}
	return all
}

// PrefixesOf returns the addresses of a result, which may be nil, each with the length of
// its subnet.
func PrefixesOf(result *types100.Result) (all []netip.Prefix) {
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if ip == nil {
			continue
		}
		if p, ok := prefix(ip.Address); ok {
			all = append(all, p)
		}
	}
	return all
}

// FirstAddresses returns the container's first address of each family. It omits the
// addresses of interfaces on the host and of other interfaces in the container.
func FirstAddresses(result *types100.Result, ifName string) (v4, v6 netip.Prefix) {
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) && !names(result, *i, ifName) {
			continue
		}
		p, ok := prefix(ip.Address)
		switch {
		case !ok:
		case p.Addr().Is4() && !v4.IsValid():
			v4 = p
		case p.Addr().Is6() && !v6.IsValid():
			v6 = p
		}
	}
	return v4, v6
}

func prefix(n net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	ones, bits := n.Mask.Size()
	if bits == 0 || bits != addr.BitLen() {
		ones = addr.BitLen()
	}
	return netip.PrefixFrom(addr, ones), true
}

func names(result *types100.Result, index int, ifName string) bool {
	if index < 0 || index >= len(result.Interfaces) || result.Interfaces[index] == nil {
		return false
	}
	i := result.Interfaces[index]
	return i.Name == ifName && i.Sandbox != ""
}

// SameMAC reports whether an interface has the hardware address in a result.
// Plugins report an address as configured, so its spelling may differ; an empty
// one is not compared. The text is compared first, because [net.ParseMAC] does
// not know the short addresses of tunnels.
func SameMAC(said string, has net.HardwareAddr) bool {
	if said == "" || said == has.String() {
		return true
	}
	mac, err := net.ParseMAC(said)
	return err == nil && bytes.Equal(mac, has)
}
