package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Found is the attachment's interface in the container.
type Found struct {
	links.Link
	Exists bool
	Ours   bool // it fits
}

// Compare compares the interface, its addresses and routes with the previous
// result.
func (i Interface) Compare(r *plugin.Request, v *contract.View) (found Found, all []contract.Difference, err error) {
	said, err := contract.Reported(r)
	if err != nil {
		return found, nil, err
	}
	found.Link, err = v.Container.Link(r.IfName)
	if links.NotFound(err) {
		return found, []contract.Difference{{
			Kind: contract.Interface, Inside: true, Object: r.IfName, Wanted: said.Mac,
			Err: fmt.Errorf("in the container: %w", err), Why: i.Gone,
		}}, nil
	}
	if err != nil {
		return found, nil, fmt.Errorf("in the container: %w", err)
	}
	found.Exists = true
	mismatches, err := i.Fits(found.Link, said)
	if err != nil {
		return found, nil, inContainer(r, err)
	}
	found.Ours = len(mismatches) == 0
	for _, d := range mismatches {
		d.Kind, d.Inside, d.Object = contract.Interface, true, r.IfName
		d.Err, d.Why = inContainer(r, d.Err), "it differs, and may be another interface"
		all = append(all, d)
	}
	c := &inside{Interface: i, r: r, own: found, found: all}
	err = c.compare(v.Container)
	return found, c.found, err
}

func inContainer(r *plugin.Request, err error) error {
	return fmt.Errorf("interface %q in the container: %w", r.IfName, err)
}

// SameMAC returns a difference unless an interface has the reported hardware
// address.
func SameMAC(own links.Link, said *types100.Interface) []contract.Difference {
	if contract.SameMAC(said.Mac, own.MAC) {
		return nil
	}
	has := own.MAC.String()
	return []contract.Difference{{Wanted: said.Mac, Found: has, Err: fmt.Errorf("its MAC address is %s, not %s", has, said.Mac)}}
}

// inside compares an interface that exists, and makes it whole again.
type inside struct {
	Interface
	r   *plugin.Request
	own Found
	wanted
	found []contract.Difference
}

func (c *inside) compare(now contract.Net) (err error) {
	if c.Up && !c.own.Up() {
		c.lacks(contract.Interface, c.r.IfName, "up", "down", errors.New("it is down"), c.restore)
	}
	if c.wanted, err = c.plan(contract.OwnResult(c.r)); err == nil && len(c.addresses) > 0 {
		err = c.compareAddresses(now)
	}
	if err == nil {
		err = c.compareRoutes(now)
	}
	if err != nil {
		return inContainer(c.r, err)
	}
	return nil
}

// lacks adds the difference of an object that fix makes again.
func (c *inside) lacks(kind contract.Kind, object, wanted, found string, err error, fix contract.Make) {
	place := &contract.Place{
		NS: c.r.Container, Inside: true, Name: fmt.Sprintf("interface %q in the container", c.r.IfName),
		Find: func(conn *links.Conn) (links.Link, error) { return conn.Link(c.r.IfName) },
		Same: func(now links.Link) bool { return now.Index == c.own.Index },
	}
	if !c.own.Ours {
		place.Whose = "the interface may be another one"
	}
	c.found = append(c.found, place.Lacks(contract.Difference{Kind: kind, Object: object, Wanted: wanted, Found: found, Err: inContainer(c.r, err)}, fix))
}

// compareAddresses compares the addresses, which must be usable. Others are the
// container's own.
func (c *inside) compareAddresses(now contract.Net) error {
	have, err := now.Addresses(c.own.Index)
	if err != nil {
		return err
	}
	for _, want := range c.addresses {
		found, why, fix := "", fmt.Errorf("address %s is missing", want), c.restore
		at := slices.IndexFunc(have, func(a links.Address) bool { return a.Prefix == want })
		other := slices.IndexFunc(have, func(a links.Address) bool { return a.Addr() == want.Addr() })
		switch {
		case at >= 0 && !have[at].Duplicate:
			continue
		case at >= 0:
			found, why, fix = "duplicate", fmt.Errorf("address %s is another machine's too", want), nil
		case other >= 0:
			found, fix = have[other].Prefix.String(), nil
		}
		c.lacks(contract.Address, fmt.Sprintf("%s on %s", want, c.r.IfName), want.String(), found, why, fix)
	}
	return nil
}

// restore makes the interface whole.
func (c *inside) restore(ctx context.Context, conn *links.Conn, now links.Link) error {
	return c.Complete(ctx, c.r.Container, conn, now, c.addresses, c.subnets...)
}

// SubnetRoutes are the routes that an ADD makes in place of the one to the
// subnet of an address: those to the gateway, and through it to the rest.
type SubnetRoutes struct {
	Address netip.Prefix
	Routes  []links.Route
}

// replace deletes the route to the subnet that the kernel added, and adds the others.
// Again is for others that may be there: without their source address, which an IPv6
// route loses with the interface's address, they are added anew.
func (s SubnetRoutes) replace(conn *links.Conn, index int, again bool) error {
	old := []links.Route{{Dst: s.Address.Masked()}}
	if again && s.Address.Addr().Is6() {
		for _, route := range s.Routes {
			old = append(old, links.Route{Dst: route.Dst, Via: route.Via})
		}
	}
	for _, route := range old {
		route.Scope = unix.RT_SCOPE_NOWHERE
		// Two addresses of a subnet share its route.
		if err := conn.DeleteRoute(index, route, unix.ESRCH); err != nil {
			return err
		}
	}
	return s.add(conn, index)
}

func (s SubnetRoutes) add(conn *links.Conn, index int) error {
	for _, route := range s.Routes {
		if err := conn.AddRoute(index, route, false, unix.EEXIST); err != nil {
			return err
		}
	}
	return nil
}

// compareRoutes reports whether there is a route to each destination of the result,
// and to the subnet of each address: the subnets first, because gateways are in
// them.
//
// It ignores other routes, and where a route leads: a program in the container,
// such as a VPN that takes over the default route or one that sets a metric, may
// have replaced it, and the destination is still reached.
func (c *inside) compareRoutes(now contract.Net) error {
	var all []links.Route
	for _, a := range c.addresses {
		if a.Bits() < a.Addr().BitLen() {
			all = append(all, ToSubnet(a))
		}
	}
	missing, err := Unreached(now, c.own.Index, append(all, c.routes...))
	for _, want := range missing {
		text := want.String()
		if want.Table != 0 {
			text += fmt.Sprint(" table ", want.Table)
		}
		c.lacks(contract.Route, fmt.Sprintf("%s on %s", want.Dst, c.r.IfName), text, "", fmt.Errorf("route %s is missing", want),
			func(_ context.Context, conn *links.Conn, _ links.Link) error { return c.addRoute(conn, want) })
	}
	return err
}

// addRoute adds a missing route, unless somebody else has by now. Those that replace the
// kernel's come first: they lead to the gateways.
func (c *inside) addRoute(conn *links.Conn, want links.Route) error {
	still, err := Unreached(conn, c.own.Index, []links.Route{want})
	if err != nil || len(still) == 0 {
		return err
	}
	for _, s := range c.subnets {
		if s.Address.Addr().Is4() == want.Dst.Addr().Is4() {
			if err := s.add(conn, c.own.Index); err != nil {
				return err
			}
		}
	}
	switch {
	case len(c.subnets) == 0 || !want.Via.IsValid() && want.Protocol != unix.RTPROT_KERNEL:
		return conn.AddRoute(c.own.Index, want, false, unix.EEXIST)
	case want.Via.IsValid():
		return c.addBehind(conn, want)
	}
	return nil
}

// addBehind adds a route through a gateway that may be in the subnet, which is not
// on the link. The kernel then accepts the gateway only while another route says
// that it is on the link, as the kernel's own one did in the ADD.
func (c *inside) addBehind(conn *links.Conn, want links.Route) error {
	reach := links.Route{Dst: netip.PrefixFrom(want.Via, want.Via.BitLen())}
	if want.Via.Is4() {
		reach.Scope = unix.RT_SCOPE_LINK
	}
	added := conn.AddRoute(c.own.Index, reach, false)
	if added != nil && !errors.Is(added, unix.EEXIST) {
		return added
	}
	err := conn.AddRoute(c.own.Index, want, false, unix.EEXIST)
	if added == nil {
		err = joined.Errors(err, conn.DeleteRoute(c.own.Index, reach, unix.ESRCH))
	}
	return err
}

// metric6 is the priority of the routes that the kernel adds with IPv6
// addresses (IP6_RT_PRIO_ADDRCONF, <net/ip6_route.h>).
const metric6 = 256

// ToSubnet returns the route to the subnet of an address that the kernel adds with
// the address.
func ToSubnet(a netip.Prefix) links.Route {
	r := links.Route{Dst: a.Masked(), Protocol: unix.RTPROT_KERNEL}
	if a.Addr().Is4() {
		r.Scope, r.Src = unix.RT_SCOPE_LINK, a.Addr()
	} else {
		r.Priority = metric6
	}
	return r
}

// router lists the routes through an interface, or with 0 through all: a
// [links.Conn] or a [contract.Net].
type router interface {
	Routes(index int) ([]links.Route, error)
}

// Unreached returns the routes whose destination has no route. It asks for all
// routes only if some do not lead through the interface.
func Unreached(n router, index int, wanted []links.Route) ([]links.Route, error) {
	wanted = slices.Clone(wanted)
	for _, from := range []int{index, anyInterface} {
		if len(wanted) == 0 {
			return nil, nil
		}
		have, err := n.Routes(from)
		if err != nil {
			return nil, err
		}
		wanted = slices.DeleteFunc(wanted, func(want links.Route) bool { return reaches(have, want) })
	}
	return wanted, nil
}

// anyInterface selects the routes through all interfaces.
const anyInterface = 0

// reaches reports whether there is a route to the destination of another route,
// in that one's table if it names one, because rules refer to tables.
func reaches(routes []links.Route, want links.Route) bool {
	return slices.ContainsFunc(routes, func(r links.Route) bool {
		return r.Dst == want.Dst && (want.Table == unix.RT_TABLE_UNSPEC || r.Table == want.Table)
	})
}

// HasRoute reports whether there is a route to dst through an interface.
func HasRoute(n router, index int, dst netip.Prefix) (bool, error) {
	routes, err := n.Routes(index)
	return reaches(routes, links.Route{Dst: dst}), err
}
