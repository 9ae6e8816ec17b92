package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// gateway compares the addresses that the containers send to. Whether the host
// forwards is its own setting, which concerns all of its containers.
func (c *comparison) gateway(context.Context) error {
	wanted, err := c.gateways(c.r.PrevResult)
	if err != nil || len(wanted) == 0 || c.IPAM.Type == "" {
		return err
	}
	on, there := c.br, c.exists
	if c.VLAN != 0 {
		if on, err = c.vlanInterface(); err != nil {
			return err
		}
		there = on.Index != 0
	}
	var have []links.Address
	if there {
		if have, err = c.v.Host.Addresses(on.Index); err != nil {
			return err
		}
		forwarding, err := veth.CompareForwarding(c.v, on, wanted)
		if err != nil {
			return err
		}
		c.found = append(c.found, forwarding...)
	}
	name := c.gatewayName()
	for _, want := range wanted {
		if slices.ContainsFunc(have, func(a links.Address) bool { return c.serves(a, want) }) {
			continue
		}
		d := compare.Difference{
			Kind: compare.Address, Object: fmt.Sprintf("%s on %s", want, name), Wanted: want.String(),
			Err: fmt.Errorf("interface %q lacks the gateway's address %s", name, want),
		}
		if _, others := conflicts(have, want); len(others) > 0 {
			d.Found, d.Why = others[0].String(), "it differs"
		}
		c.lacks(d, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
			return c.restoreGateway(ctx, conn, want)
		})
	}
	if !there || !on.Up() { // the kernel adds the routes when it is up
		return nil
	}
	return c.gatewayRoutes(on, wanted, have)
}

// gatewayRoutes compares the host's routes to the subnets of its addresses on the
// bridge, which the kernel added with the addresses. Where they lead is the
// host's decision.
func (c *comparison) gatewayRoutes(on links.Link, wanted []netip.Prefix, have []links.Address) error {
	var routes []links.Route
	for _, a := range have {
		gateway := slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Addr() == a.Addr() })
		if gateway && a.Bits() < a.Addr().BitLen() {
			routes = append(routes, ipam.ToSubnet(a.Prefix))
		}
	}
	missing, err := ipam.Unreached(c.v.Host, on.Index, routes)
	for _, route := range missing {
		c.lacks(compare.Difference{
			Kind: compare.Route, Object: fmt.Sprintf("%s on %s", route.Dst, on.Name), Wanted: route.String(),
			Err: fmt.Errorf("interface %q lacks the route %s", on.Name, route),
		}, func(_ context.Context, conn *links.Conn, _ links.Link) error { return c.restoreSubnet(conn, on, route) })
	}
	return err
}

// restoreSubnet adds a route to the subnet, unless somebody else has by now, or has
// replaced the bridge.
func (c *comparison) restoreSubnet(conn *links.Conn, on links.Link, route links.Route) error {
	now, err := conn.Link(on.Name)
	if err != nil || now.Index != on.Index {
		return err
	}
	still, err := ipam.Unreached(conn, on.Index, []links.Route{route})
	if err != nil || len(still) == 0 {
		return err
	}
	if err := conn.AddRoute(on.Index, route, false, unix.EEXIST); err != nil {
		return fmt.Errorf("interface %q: %w", on.Name, err)
	}
	return nil
}

// restoreGateway adds the address of a gateway, and deletes none. It does nothing if
// somebody has replaced the bridge.
func (c *comparison) restoreGateway(ctx context.Context, conn *links.Conn, want netip.Prefix) error {
	on, err := conn.Link(c.gatewayName())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	br, err := conn.Link(c.Bridge)
	if err != nil || !c.made.is(br) {
		return err
	}
	have, err := conn.Addresses(on.Index)
	if err != nil {
		return err
	}
	lan := false
	if want.Addr().Is6() {
		if lan, err = conn.HasUplink(br.Index); err != nil {
			return err
		}
	}
	added, err := (&config{}).ensureAddresses(conn, on, have, []netip.Prefix{want}, lan)
	if err != nil {
		return err
	}
	err = awaitGateways(ctx, c.r.Host, conn, on, added, lan)
	if lan && errors.Is(err, caller.ErrEnough) {
		return nil // the kernel goes on looking for machines that have it
	}
	return err
}

// serves reports whether an address of the bridge is the wanted gateway. Its
// subnet may be wider by now. With forceAddress, an address of another range or
// network may replace one of the same family.
func (c *config) serves(a links.Address, want netip.Prefix) bool {
	if a.Addr() == want.Addr() {
		return true
	}
	return c.ForceAddress && a.Addr().Is4() == want.Addr().Is4() && !a.Addr().IsLinkLocalUnicast()
}
