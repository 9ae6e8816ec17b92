package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// SubnetRoutes are the routes that an ADD makes in place of the one to the
// subnet of an address: those to the gateway, and through it to the rest.
type SubnetRoutes struct {
	Address netip.Prefix
	Routes  []links.Route
}

// Replace deletes the route to the subnet that the kernel added, and adds the others.
// Again is for others that may be there: without their source address, which an IPv6
// route loses with the interface's address, they are added anew.
func (s SubnetRoutes) Replace(conn *links.Conn, index int, again bool) error {
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

// routes reports whether there is a route to each destination of the result,
// and to the subnet of each address: the subnets first, because gateways are in
// them.
//
// It ignores other routes, and where a route leads: a program in the container,
// such as a VPN that takes over the default route or one that sets a metric, may
// have replaced it, and the destination is still reached.
func (c *inside) routes(w wanted, result *types100.Result) ([]compare.Difference, error) {
	subnets, err := c.subnets(result)
	if err != nil {
		return nil, err
	}
	var wanted []links.Route
	for _, a := range w.addresses {
		if a.Bits() < a.Addr().BitLen() {
			wanted = append(wanted, links.Route{Dst: a.Masked()})
		}
	}
	wanted = append(wanted, w.routes...)
	missing, err := Unreached(c.v.Container, c.own.Index, wanted)
	if err != nil {
		return nil, err
	}
	var all []compare.Difference
	for _, want := range missing {
		text := want.String()
		if want.Table != 0 {
			text += fmt.Sprint(" table ", want.Table)
		}
		all = append(all, c.lacks(compare.Route, fmt.Sprintf("%s on %s", want.Dst, c.r.IfName), text, "",
			fmt.Errorf("route %s is missing", want),
			func(_ context.Context, conn *links.Conn, _ links.Link) error {
				return c.addRoute(conn, want, w, subnets)
			}))
	}
	return all, nil
}

// addRoute adds a missing route, unless somebody else has by now.
func (c *inside) addRoute(conn *links.Conn, want links.Route, w wanted, subnets []SubnetRoutes) error {
	still, err := Unreached(conn, c.own.Index, []links.Route{want})
	if err != nil || len(still) == 0 {
		return err
	}
	for _, s := range subnets { // which lead to the gateways
		if s.Address.Addr().Is4() != want.Dst.Addr().Is4() {
			continue
		}
		if err := s.add(conn, c.own.Index); err != nil {
			return err
		}
	}
	at := slices.IndexFunc(w.addresses, func(a netip.Prefix) bool { return a.Masked() == want.Dst })
	switch {
	case want.Via.IsValid() && len(subnets) > 0:
		return c.addBehind(conn, want)
	case want.Via.IsValid() || slices.ContainsFunc(w.routes, func(r links.Route) bool { return r == want }):
		return conn.AddRoute(c.own.Index, want, false, unix.EEXIST)
	case at >= 0 && len(subnets) == 0:
		return conn.AddRoute(c.own.Index, ToSubnet(w.addresses[at]), false, unix.EEXIST)
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
		err = errors.Join(err, conn.DeleteRoute(c.own.Index, reach, unix.ESRCH))
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
// [links.Conn] or a [compare.Net].
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
