package ipam

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
)

// wanted are the addresses and routes of an interface, from a result.
type wanted struct {
	addresses []netip.Prefix
	routes    []links.Route
}

// ipv6 reports whether there is an IPv6 address.
func (w wanted) ipv6() bool {
	return slices.ContainsFunc(w.addresses, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// plan reads a result. A route without a gateway gets that of the first address
// of its family that has one.
func plan(result *types100.Result) (wanted, error) {
	var w wanted
	if result == nil || len(result.IPs) == 0 {
		return w, errors.New("the result has no address")
	}
	var gateways [2]netip.Addr // of IPv4, IPv6
	for i, ip := range result.IPs {
		if ip == nil {
			return w, fmt.Errorf("the result's address %d is null", i)
		}
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return w, fmt.Errorf("the result's address %d: %w", i, err)
		}
		via, err := gateway(ip.Gateway, p.Addr())
		if err != nil {
			return w, fmt.Errorf("the result's address %s: %w", p, err)
		}
		if first := &gateways[familyOf(p.Addr())]; !first.IsValid() {
			*first = via
		}
		w.addresses = append(w.addresses, p)
	}
	for i, r := range result.Routes {
		if r == nil {
			return w, fmt.Errorf("the result's route %d is null", i)
		}
		route, err := route(r, gateways)
		if err != nil {
			return w, fmt.Errorf("the result's route %d: %w", i, err)
		}
		w.routes = append(w.routes, route)
	}
	return w, nil
}

func route(r *types.Route, gateways [2]netip.Addr) (links.Route, error) {
	dst, err := links.Prefix(r.Dst)
	if err != nil {
		return links.Route{}, err
	}
	via, err := gateway(r.GW, dst.Addr())
	if err != nil {
		return links.Route{}, fmt.Errorf("to %s: %w", dst, err)
	}
	if !via.IsValid() {
		via = gateways[familyOf(dst.Addr())]
	}
	route := links.Route{
		Dst: dst.Masked(), Via: via,
		Scope: unix.RT_SCOPE_UNIVERSE, Priority: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS,
	}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		if *r.Scope < 0 || *r.Scope > 255 {
			return links.Route{}, fmt.Errorf("to %s: scope %d is not between 0 and 255", dst, *r.Scope)
		}
		route.Scope = uint8(*r.Scope)
	}
	if route.Table < 0 || route.Priority < 0 || route.MTU < 0 || route.AdvMSS < 0 {
		return links.Route{}, fmt.Errorf("to %s: a negative table, priority, mtu or advmss", dst)
	}
	return route, nil
}

// gateway converts the optional gateway of an address.
func gateway(ip net.IP, of netip.Addr) (netip.Addr, error) {
	if len(ip) == 0 {
		return netip.Addr{}, nil
	}
	addr, ok := netip.AddrFromSlice(ip)
	if addr = addr.Unmap(); !ok || addr.Is4() != of.Is4() {
		return netip.Addr{}, fmt.Errorf("the gateway %q is of another family", ip)
	}
	return addr, nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
