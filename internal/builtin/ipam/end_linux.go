package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Apply sets the attachment's interface up, with the addresses of a result if
// typ names an IPAM plugin, and lists it as the only interface of the result. It
// waits for duplicate address detection if there is a carrier within the time;
// see [Detect].
func Apply(ctx context.Context, r *plugin.Request, typ string, result *types100.Result, how How, carrier time.Duration) error {
	var sysctls []links.Sysctl
	if typ != "" {
		var err error
		if sysctls, err = Sysctls(r.IfName, result); err != nil {
			return err
		}
		if how.Announce { // also the IPv6 addresses that come from routers
			sysctls = append(sysctls, Announced(r.IfName))
		}
	}
	return caller.On(ctx, r.Container, func(conn *links.Conn) error {
		if err := conn.SetSysctls(r.Container, sysctls...); err != nil {
			return err
		}
		own, err := conn.Link(r.IfName)
		if err != nil {
			return err
		}
		Only(r, result, own.MAC.String())
		if typ == "" {
			return conn.Up(own.Index)
		}
		if err := Configure(conn, own.Index, result, how); err != nil {
			return err
		}
		return Detect(ctx, r.Container, conn, own.Index, result, carrier)
	})
}

// Only lists the attachment's interface as the only one of a result, with all of
// its addresses.
func Only(r *plugin.Request, result *types100.Result, mac string) {
	result.Interfaces = []*types100.Interface{{Name: r.IfName, Mac: mac, Sandbox: r.NetNS}}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(0)
	}
}

// HasIPv6 reports whether a result has an IPv6 address.
func HasIPv6(result *types100.Result) bool {
	return slices.ContainsFunc(result.IPs, func(ip *types100.IPConfig) bool { return ip != nil && ip.Address.IP.To4() == nil })
}

// Sysctls returns the settings that an interface in a container needs before it
// gets the addresses of a result: enabled IPv6, and addresses that stay when the
// interface is down.
func Sysctls(ifName string, result *types100.Result) ([]links.Sysctl, error) {
	w, err := plan(result)
	if err != nil || len(w.of(true)) == 0 {
		return nil, err
	}
	const conf = "net/ipv6/conf/"
	return []links.Sysctl{
		// Without /proc/sys/net/ipv6 there is no IPv6; adding the address reports
		// that.
		{Path: conf + "lo/disable_ipv6", Value: "0", Optional: true},
		{Path: conf + ifName + "/disable_ipv6", Value: "0"},
		{Path: conf + ifName + "/keep_addr_on_down", Value: "1"},
	}, nil
}

// How configures the assignment of addresses.
type How struct {
	// Announce makes the kernel announce the addresses, because neighbours may
	// know an address as another's. The kernel announces an IPv4 address when the
	// interface comes up (arp_notify), and with [Announced] an IPv6 address when
	// it is added to an interface that is up and detects duplicates.
	Announce bool
	// Detect leaves duplicate detection of IPv6 addresses to the interface's
	// settings; [Detect] waits for it. Without Detect there is none: if nobody
	// else can have the address, detection would waste 1 to 2 s.
	Detect bool
	// Later leaves the announcement of the IPv4 addresses to the caller, until
	// packets can pass: see [links.Conn.Announce]. The kernel announces later
	// changes.
	Later bool
}

// Announced is the setting that makes the kernel announce IPv6 addresses. It
// announces those for which it detects duplicates, however shortly: the
// interface's setting accept_dad decides about detection.
func Announced(ifName string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv6/conf/" + ifName + "/ndisc_notify", Value: "1", Optional: true}
}

// Configure assigns the addresses of a result to an interface, sets it up, and adds
// the routes. IPv6 addresses are usable after [Await]. With
// How.Detect they are usable after [Detect] if the interface detects duplicates,
// and after [Settle] if it does not. Call these last, because the kernel works
// on the addresses meanwhile.
func Configure(conn *links.Conn, index int, result *types100.Result, how How) error {
	w, err := plan(result)
	if err != nil {
		return err
	}
	// An interface with an MTU too small for IPv4 has no such setting.
	notify := func() error { return conn.Set4(index, "arp_notify", 1, unix.EAFNOSUPPORT) }
	if how.Announce && !how.Later {
		if err := notify(); err != nil {
			return err
		}
	}
	add := func(addrs []netip.Prefix) error {
		for _, a := range addrs {
			if err := conn.AddAddress(index, a, how.Detect); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(w.of(false)); err != nil {
		return err
	}
	if err := conn.Up(index); err != nil {
		return err
	}
	if how.Announce && how.Later {
		if err := notify(); err != nil {
			return err
		}
	}
	if err := add(w.of(true)); err != nil {
		return err
	}
	for _, r := range w.routes {
		if err := conn.AddRoute(index, r, true); err != nil {
			return err
		}
	}
	return nil
}

// IPv4 returns the IPv4 addresses of a result.
func IPv4(result *types100.Result) []netip.Addr {
	return slices.DeleteFunc(compare.AddressesOf(result), netip.Addr.Is6)
}

// wanted are the addresses and routes of an interface, from a result.
type wanted struct {
	addresses []netip.Prefix
	routes    []links.Route
}

// of returns the addresses of a family.
func (w wanted) of(v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(w.addresses), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
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
