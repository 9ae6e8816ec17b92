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

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Interface describes an interface in the container, for the ADD that makes it and for
// comparisons.
type Interface struct {
	Up bool // it should be up
	// Announce makes the kernel announce the addresses, because neighbours may
	// know an address as another's. The kernel announces an IPv4 address when the
	// interface comes up (arp_notify), and with [Announced] an IPv6 address when
	// it is added to an interface that is up and detects duplicates.
	Announce bool
	// Later leaves the announcement of the IPv4 addresses to the caller, until
	// packets can pass: see [links.Announce]. The kernel announces later
	// changes.
	Later bool
	// Detect leaves duplicate detection of IPv6 addresses to the interface's
	// settings; [Detect] waits for it. Without Detect there is none: if nobody
	// else can have the address, detection would waste 1 to 2 s.
	Detect bool
	// LinkLocal gives the interface its link-local address before it is set up;
	// see [links.LinkLocal].
	LinkLocal bool
	// Routes returns the routes that replace the one to the subnet of an address,
	// which the kernel adds with the address. If it is nil, none do.
	Routes func(own *types100.Result) ([]SubnetRoutes, error)

	// Fits returns the differences from the interface that the ADD made. It sets Wanted,
	// Found and Err. An interface that differs may be another one, so that a repair makes
	// nothing in it.
	Fits func(own links.Link, said *types100.Interface) ([]contract.Difference, error)
	// Gone says why a missing interface cannot be made again.
	Gone string
}

// Apply sets the attachment's interface up, with the addresses of a result if there are
// any, and lists it as the only interface of the result. It
// waits for duplicate address detection if there is a carrier within the time;
// see [Detect].
func (i Interface) Apply(ctx context.Context, r *plugin.Request, result *types100.Result, carrier time.Duration) error {
	sysctls := Sysctls(r.IfName, result)
	if i.Announce && len(result.IPs) > 0 { // also the IPv6 addresses that come from routers
		sysctls = append(sysctls, Announced(r.IfName))
	}
	return contract.On(ctx, r.Container, func(conn *links.Conn) error {
		if err := links.SetSysctls(conn, r.Container, sysctls...); err != nil {
			return err
		}
		own, err := conn.Link(r.IfName)
		if err != nil {
			return err
		}
		Only(r, result, own.MAC.String())
		added, err := i.Make(r.Container, conn, own, result)
		if err != nil {
			return err
		}
		return Detect(ctx, r.Container, conn, own.Index, added, carrier)
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
func Sysctls(ifName string, result *types100.Result) []links.Sysctl {
	if !HasIPv6(result) {
		return nil
	}
	const conf = "net/ipv6/conf/"
	return []links.Sysctl{
		// Without /proc/sys/net/ipv6 there is no IPv6; adding the address reports
		// that.
		{Path: conf + "lo/disable_ipv6", Value: "0", Optional: true},
		{Path: conf + ifName + "/disable_ipv6", Value: "0"},
		{Path: conf + ifName + "/keep_addr_on_down", Value: "1"},
	}
}

// Announced is the setting that makes the kernel announce IPv6 addresses. It
// announces those for which it detects duplicates, however shortly: the
// interface's setting accept_dad decides about detection.
func Announced(ifName string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv6/conf/" + ifName + "/ndisc_notify", Value: "1", Optional: true}
}

// Make assigns the addresses of a result, if there are any, to a new interface, sets it up,
// and adds the routes. It returns the addresses, with the link-local one if it has set that.
// IPv6 addresses are usable after [Await]. With Detect they are usable after [Detect] if the
// interface detects duplicates, and after [Settle], which is faster, if it does not. Call
// these last, because the kernel works on the addresses meanwhile.
func (i Interface) Make(ns *netns.Handle, conn *links.Conn, own links.Link, result *types100.Result) (added []netip.Prefix, err error) {
	w, err := i.plan(result)
	if err == nil && i.LinkLocal { // its settings decide which address
		own, err = conn.LinkByIndex(own.Index)
	}
	if err == nil {
		added, err = i.add(ns, conn, own, nil, w.addresses)
	}
	if err != nil {
		return nil, err
	}
	for _, r := range w.routes {
		if err := conn.AddRoute(own.Index, r, true); err != nil {
			return nil, err
		}
	}
	// The kernel may have required its own for the routes of the IPAM plugin.
	for _, s := range w.subnets {
		if err := s.replace(conn, own.Index, false); err != nil {
			return nil, err
		}
	}
	return added, nil
}

// Complete sets the interface up, adds those of the addresses that it lacks, and replaces the
// kernel's routes to their subnets, as the ADD did. It removes addresses again if another
// machine has one by now. IPv6 addresses, which are usually lost with an interface that is
// set down, come before their routes: none can have an address as its source that is not
// usable.
func (i Interface) Complete(ctx context.Context, ns *netns.Handle, conn *links.Conn, now links.Link, addrs []netip.Prefix, subnets ...SubnetRoutes) error {
	added, err := i.Fill(ns, conn, now, addrs)
	if err != nil {
		return err
	}
	for _, s := range subnets {
		if !i.Up || now.Up() && !slices.Contains(added, s.Address) {
			continue
		}
		err := Await(ctx, conn, now.Index, []netip.Prefix{s.Address})
		if err == nil {
			err = s.replace(conn, now.Index, true)
		}
		if err != nil {
			return err
		}
	}
	if !i.Detect {
		return Await(ctx, conn, now.Index, added)
	}
	// Without a carrier the kernel looks for duplicates later.
	err = Detect(ctx, ns, conn, now.Index, added, 0)
	if err != nil {
		for _, a := range ofFamily(added, true) {
			err = joined.Errors(err, conn.DeleteAddress(now.Index, a))
		}
	}
	return err
}

// Fill sets the interface up and adds those of the addresses that it lacks, which it returns.
// They are usable as after Make.
func (i Interface) Fill(ns *netns.Handle, conn *links.Conn, now links.Link, addrs []netip.Prefix) (added []netip.Prefix, err error) {
	have, err := conn.Addresses(now.Index)
	if err != nil {
		return nil, err
	}
	return i.add(ns, conn, now, have, addrs, unix.EEXIST)
}

// add adds the addresses that the interface does not have, and sets it up: after the IPv4
// addresses, of which the kernel announces those that it has then, and before the IPv6
// addresses, of which it announces those that are added to an interface that is up.
func (i Interface) add(ns *netns.Handle, conn *links.Conn, now links.Link, have []links.Address, addrs []netip.Prefix, fine ...error) (added []netip.Prefix, err error) {
	down := i.Up && !now.Up()
	if down && i.LinkLocal && len(ofFamily(addrs, true)) > 0 {
		first, err := links.LinkLocal(conn, ns, now)
		if err != nil {
			return nil, err
		}
		added = append(added, first)
	}
	for _, v6 := range []bool{false, true} {
		family := ofFamily(addrs, v6)
		for _, want := range family {
			if slices.ContainsFunc(have, func(a links.Address) bool { return a.Addr() == want.Addr() }) {
				continue
			}
			if err := conn.AddAddress(now.Index, want, i.Detect, fine...); err != nil {
				return nil, err
			}
			added = append(added, want)
		}
		if down && !v6 {
			i.Announce = i.Announce && len(addrs) > 0
			if err := i.setUp(conn, now.Index); err != nil {
				return nil, err
			}
		}
	}
	return added, nil
}

// setUp sets the interface up, and makes the kernel announce its IPv4 addresses.
func (i Interface) setUp(conn *links.Conn, index int) (err error) {
	// An interface with an MTU too small for IPv4 has no such setting.
	notify := func() error { return links.Set4(conn, index, "arp_notify", 1, unix.EAFNOSUPPORT) }
	if i.Announce && !i.Later {
		err = notify()
	}
	if err == nil {
		err = conn.Up(index)
	}
	if err == nil && i.Announce && i.Later {
		err = notify()
	}
	return err
}

// IPv4 returns the IPv4 addresses of a result.
func IPv4(result *types100.Result) []netip.Addr {
	return slices.DeleteFunc(contract.AddressesOf(result), netip.Addr.Is6)
}

// wanted are the addresses and routes of an interface, from a result.
type wanted struct {
	addresses []netip.Prefix
	routes    []links.Route
	subnets   []SubnetRoutes // instead of those of the kernel; IPv4 first, because IPv6 may have to wait
}

// ofFamily returns the addresses of a family.
func ofFamily(addrs []netip.Prefix, v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(addrs), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}

// plan reads a result, which may have no addresses; see [plan].
func (i Interface) plan(result *types100.Result) (w wanted, err error) {
	if len(result.IPs) == 0 {
		return w, nil
	}
	w, err = plan(result)
	if err == nil && i.Routes != nil {
		w.subnets, err = i.Routes(result)
		slices.SortStableFunc(w.subnets, func(a, b SubnetRoutes) int { return a.Address.Addr().BitLen() - b.Address.Addr().BitLen() })
	}
	return w, err
}

// plan reads a result. A route without a gateway gets that of the first address
// of its family that has one.
func plan(result *types100.Result) (wanted, error) {
	var w wanted
	if result == nil || len(result.IPs) == 0 {
		return w, errors.New("the result has no address")
	}
	gateways := make(map[bool]netip.Addr) // of IPv4, and not
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
		if v4 := p.Addr().Is4(); !gateways[v4].IsValid() {
			gateways[v4] = via
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

func route(r *types.Route, gateways map[bool]netip.Addr) (links.Route, error) {
	dst, err := links.Prefix(r.Dst)
	if err != nil {
		return links.Route{}, err
	}
	via, err := gateway(r.GW, dst.Addr())
	if err != nil {
		return links.Route{}, fmt.Errorf("to %s: %w", dst, err)
	}
	if !via.IsValid() {
		via = gateways[dst.Addr().Is4()]
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
