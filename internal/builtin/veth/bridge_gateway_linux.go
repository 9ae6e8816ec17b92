package veth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// ensureAddresses assigns the missing addresses of gateways to the bridge. A
// bridge has one IPv4 address, and IPv6 addresses of subnets that do not
// overlap; another one is an error, or is deleted if the configuration forces
// it. Many attachments may do this at once. It returns the addresses that it
// added; if detect is set, the kernel detects their duplicates.
func (c *bridgeConfig) ensureAddresses(conn *links.Conn, br links.Link, wanted []netip.Prefix, detect bool) (added []netip.Prefix, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	have, err := conn.Addresses(br.Index)
	if err != nil {
		return nil, err
	}
	for _, want := range wanted {
		present, others := conflicts(have, want)
		if present {
			continue
		}
		for _, other := range others {
			if !c.ForceAddress {
				return nil, plugin.Errorf(types.ErrInvalidNetworkConfig,
					`interface %q has the address %s already, and not %s: set "forceAddress" to replace it`, br.Name, other, want)
			}
			if err := conn.DeleteAddress(br.Index, other); err != nil {
				return nil, err
			}
		}
		if err := conn.AddAddress(br.Index, want, detect); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("interface %q: %w", br.Name, err)
		}
		have = append(have, links.Address{Prefix: want})
		added = append(added, want)
	}
	if len(added) == 0 {
		return nil, nil
	}
	// The MAC address of a bridge that somebody else made may change with its
	// ports, and containers that know it would lose their gateway. A fixed
	// address stays.
	if err := conn.Change(br.Index, links.Change{MAC: br.MAC}); err != nil {
		return nil, fmt.Errorf("pin the MAC address of interface %q: %w", br.Name, err)
	}
	return added, nil
}

// conflicts reports whether an address already exists, or else returns the
// addresses that exclude it.
func conflicts(have []links.Address, want netip.Prefix) (present bool, others []netip.Prefix) {
	for _, a := range have {
		switch {
		case a.Prefix == want:
			return true, nil
		case a.Addr().Is4() != want.Addr().Is4():
		case want.Addr().Is4(), a.Overlaps(want):
			others = append(others, a.Prefix)
		}
	}
	return false, others
}

// awaitGateways waits until the added addresses of gateways are usable. On a
// network with other machines, it deletes an address that one of them has.
func awaitGateways(ctx context.Context, host *netns.Handle, conn *links.Conn, on links.Link, added []netip.Prefix, lan bool) error {
	if !lan {
		return ipam.Await(ctx, conn, on.Index, added)
	}
	err := ipam.Detect(ctx, host, conn, on.Index, added, carrierTime)
	if err == nil {
		return nil
	}
	have, unread := conn.Addresses(on.Index)
	err = joined.Errors(err, unread)
	for _, a := range have {
		if a.Duplicate && slices.Contains(added, a.Prefix) {
			err = joined.Errors(err, conn.DeleteAddress(on.Index, a.Prefix))
		}
	}
	return fmt.Errorf("the gateway: interface %q: %w", on.Name, err)
}

// gateway compares the addresses that the containers send to. Whether the host
// forwards is its own setting, which concerns all of its containers.
func (c *comparison) gateway(context.Context) error {
	wanted, err := c.conf.gateways(c.r.PrevResult)
	if err != nil || len(wanted) == 0 || c.conf.shared.IPAM.Type == "" {
		return err
	}
	on := c.br
	if c.conf.port.VLAN != 0 {
		if on, err = c.vlanInterface(); err != nil {
			return err
		}
	}
	var have []links.Address
	if on.Index != 0 {
		if have, err = c.v.Host.Addresses(on.Index); err != nil {
			return err
		}
		forwarding, err := CompareForwarding(c.v, on, wanted)
		if err != nil {
			return err
		}
		c.found = append(c.found, forwarding...)
	}
	name := c.conf.gatewayName()
	for _, want := range wanted {
		if slices.ContainsFunc(have, func(a links.Address) bool { return c.conf.serves(a, want) }) {
			continue
		}
		d := contract.Difference{
			Kind: contract.Address, Object: fmt.Sprintf("%s on %s", want, name), Wanted: want.String(),
			Err: fmt.Errorf("interface %q lacks the gateway's address %s", name, want),
		}
		if _, others := conflicts(have, want); len(others) > 0 {
			d.Found, d.Why = others[0].String(), "it differs"
		}
		c.lacks(d, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
			return c.restoreGateway(ctx, conn, want)
		})
	}
	if !on.Up() { // the kernel adds the routes when it is up
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
		c.lacks(contract.Difference{
			Kind: contract.Route, Object: fmt.Sprintf("%s on %s", route.Dst, on.Name), Wanted: route.String(),
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
	on, err := conn.Link(c.conf.gatewayName())
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	br, err := conn.Link(c.conf.Bridge)
	if err != nil || !c.made.is(br) {
		return err
	}
	lan := false
	if want.Addr().Is6() {
		if lan, err = links.HasUplink(conn, br.Index); err != nil {
			return err
		}
	}
	added, err := (&bridgeConfig{}).ensureAddresses(conn, on, []netip.Prefix{want}, lan)
	if err != nil {
		return err
	}
	return awaitGateways(ctx, c.r.Host, conn, on, added, lan)
}

// serves reports whether an address of the bridge is the wanted gateway. Its
// subnet may be wider by now. With forceAddress, an address of another range or
// network may replace one of the same family.
func (c *bridgeConfig) serves(a links.Address, want netip.Prefix) bool {
	if a.Addr() == want.Addr() {
		return true
	}
	return c.ForceAddress && a.Addr().Is4() == want.Addr().Is4() && !a.Addr().IsLinkLocalUnicast()
}

// ensureVLANInterface returns the interface that is the gateway of a VLAN: the
// outer end of a pair whose inner end is a port of the bridge in that VLAN. A new
// one gets the MAC address, or a random one.
func (c *bridgeConfig) ensureVLANInterface(conn *links.Conn, r *plugin.Request, br links.Link, mac net.HardwareAddr) (links.Link, error) {
	name := c.gatewayName()
	if len(name) >= unix.IFNAMSIZ {
		return links.Link{}, invalid(`"vlan", "bridge": the gateway of the VLAN would be %q, whose name is too long`, name)
	}
	if link, err := conn.Link(name); !links.NotFound(err) {
		return link, err
	}
	pair, err := links.Veth{Name: name, MAC: mac, MTU: br.MTU, Master: br.Index}.Create(conn, r.Host)
	if errors.Is(err, unix.EEXIST) { // another attachment was faster
		return conn.Link(name)
	}
	if err != nil {
		return links.Link{}, err
	}
	if err := c.access().port.join(conn, br, pair.Host, true); err != nil {
		return links.Link{}, joined.Errors(err, conn.Delete(pair.Host.Index))
	}
	if err := setUp(conn, r.Host, pair.Container.Index); err != nil {
		return links.Link{}, joined.Errors(fmt.Errorf("set interface %q up: %w", name, err), conn.Delete(pair.Host.Index))
	}
	return pair.Container, nil
}

// setUp gives a new interface its link-local address and sets it up. The host
// forwards to it.
func setUp(conn *links.Conn, host *netns.Handle, index int) error {
	link, err := conn.LinkByIndex(index)
	if err != nil {
		return err
	}
	if _, err := links.LinkLocal(conn, host, link); err != nil {
		return err
	}
	return conn.Change(index, links.Change{Set: unix.IFF_UP})
}

// vlanInterface compares the interface that is the gateway of a VLAN, and its other end:
// the port of the bridge, which stays behind when the bridge is deleted. The index
// is 0 if it does not exist. An interface that is no veth pair is an administrator's, who
// knows how it reaches the VLAN.
func (c *comparison) vlanInterface() (links.Link, error) {
	name := c.conf.gatewayName()
	lacks := func(l links.Link, wanted, found string, err error) {
		d := contract.Difference{Kind: contract.Interface, Object: l.Name, Wanted: wanted, Found: found, Err: fmt.Errorf("gateway of the VLAN: %w", err)}
		c.lacks(d, c.restoreVLANInterface)
	}
	up := func(l links.Link) {
		if !l.Up() {
			lacks(l, "up", "down", fmt.Errorf("interface %q is down", l.Name))
		}
	}
	on, err := c.v.Host.Link(name)
	if links.NotFound(err) {
		lacks(links.Link{Name: name}, c.reportedMAC(name).String(), "", err)
		return links.Link{}, nil
	}
	if err != nil {
		return on, fmt.Errorf("gateway of the VLAN: %w", err)
	}
	up(on)
	if !hasPort(on) {
		return on, nil
	}
	port, err := c.v.Host.LinkByIndex(on.Peer.Index)
	if err != nil {
		return on, fmt.Errorf("gateway of the VLAN: the other end of interface %q: %w", on.Name, err)
	}
	up(port)
	return on, c.onBridge(port, c.onHost(), c.conf.access(), c.restoreVLANInterface)
}

// hasPort reports whether the other end of the gateway of a VLAN is a port of the bridge.
func hasPort(on links.Link) bool { return on.Kind == "veth" && !on.Peer.Elsewhere }

// reportedMAC returns the hardware address of an interface of the host in the
// result, or nil.
func (c *comparison) reportedMAC(name string) net.HardwareAddr {
	i := contract.OnHost(c.r, name)
	if i == nil {
		return nil
	}
	mac, err := net.ParseMAC(i.Mac)
	if err != nil {
		return nil
	}
	return mac
}

// restoreVLANInterface makes the bridge's interface in the VLAN, or adds the parts that the
// interface lacks. It does nothing if somebody has replaced the bridge.
func (c *comparison) restoreVLANInterface(ctx context.Context, conn *links.Conn, _ links.Link) error {
	br, err := conn.Link(c.conf.Bridge)
	if err == nil {
		err = c.conf.fits(br)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if !c.made.is(br) {
		return nil
	}
	on, err := c.conf.ensureVLANInterface(conn, c.r, br, c.reportedMAC(c.conf.gatewayName()))
	if err == nil {
		on, err = conn.LinkByIndex(on.Index)
	}
	if err != nil {
		return err
	}
	if hasPort(on) {
		port, err := conn.LinkByIndex(on.Peer.Index)
		if err == nil {
			err = c.conf.access().restorePort(ctx, conn, port)
		}
		if err != nil {
			return fmt.Errorf("the other end of interface %q: %w", on.Name, err)
		}
	}
	if on.Up() {
		return nil
	}
	return setUp(conn, c.r.Host, on.Index)
}
