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
func (c *comparison) gateway(context.Context) (all []compare.Difference, err error) {
	wanted, err := c.gateways(c.r.PrevResult)
	if err != nil || len(wanted) == 0 || c.IPAM.Type == "" {
		return nil, err
	}
	on, name := c.br, c.Bridge
	there := c.exists
	if c.VLAN != 0 {
		if on, all, err = c.vlanInterface(); err != nil {
			return nil, err
		}
		name, there = vlanName(c.Bridge, c.VLAN), on.Index != 0
	}
	var have []links.Address
	if there {
		if have, err = c.v.Host.Addresses(on.Index); err != nil {
			return nil, err
		}
		forwarding, err := veth.CompareForwarding(c.v, on,
			slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Addr().Is4() }),
			slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Addr().Is6() }))
		if err != nil {
			return nil, err
		}
		all = append(all, forwarding...)
	}
	for _, want := range wanted {
		if slices.ContainsFunc(have, func(a links.Address) bool { return c.serves(a, want) }) {
			continue
		}
		all = append(all, c.gatewayAddress(name, want, have))
	}
	if !there || !on.Up() { // the kernel adds the routes when it is up
		return all, nil
	}
	routes, err := c.gatewayRoutes(on, wanted, have)
	return append(all, routes...), err
}

// gatewayRoutes compares the host's routes to the subnets of its addresses on the
// bridge, which the kernel added with the addresses. Where they lead is the
// host's decision.
func (c *comparison) gatewayRoutes(on links.Link, wanted []netip.Prefix, have []links.Address) (all []compare.Difference, err error) {
	var routes []links.Route
	for _, a := range have {
		gateway := slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Addr() == a.Addr() })
		if gateway && a.Bits() < a.Addr().BitLen() {
			routes = append(routes, ipam.ToSubnet(a.Prefix))
		}
	}
	if len(routes) == 0 {
		return nil, nil
	}
	missing, err := ipam.Unreached(c.v.Host, on.Index, routes)
	for _, route := range missing {
		all = append(all, c.onHost().Lacks(compare.Difference{
			Kind: compare.Route, Object: fmt.Sprintf("%s on %s", route.Dst, on.Name), Wanted: route.String(),
			Err: fmt.Errorf("interface %q lacks the route %s", on.Name, route),
		}, func(_ context.Context, conn *links.Conn, _ links.Link) error { return c.addSubnet(conn, on, route) }))
	}
	return all, err
}

// addSubnet adds a route to the subnet, unless somebody else has by now, or has
// replaced the bridge.
func (c *comparison) addSubnet(conn *links.Conn, on links.Link, route links.Route) error {
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

// gatewayAddress is the difference of a missing address.
func (c *comparison) gatewayAddress(name string, want netip.Prefix, have []links.Address) compare.Difference {
	d := compare.Difference{
		Kind: compare.Address, Object: fmt.Sprintf("%s on %s", want, name), Wanted: want.String(),
		Err: fmt.Errorf("interface %q lacks the gateway's address %s", name, want),
	}
	if _, others := conflicts(have, want); len(others) > 0 {
		d.Found, d.Why = others[0].String(), "it differs"
		return d
	}
	return c.onHost().Lacks(d, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
		on, err := conn.Link(name)
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return c.addGateway(ctx, conn, on, want)
	})
}

// addGateway adds the address of a gateway, and deletes none. It does nothing if
// somebody has replaced the bridge.
func (c *comparison) addGateway(ctx context.Context, conn *links.Conn, on links.Link, want netip.Prefix) error {
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
	added, err := (&gatewayConfig{}).ensureAddresses(conn, on, have, []netip.Prefix{want}, lan)
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
func (c *gatewayConfig) serves(a links.Address, want netip.Prefix) bool {
	if a.Addr() == want.Addr() {
		return true
	}
	return c.ForceAddress && a.Addr().Is4() == want.Addr().Is4() && !a.Addr().IsLinkLocalUnicast()
}
