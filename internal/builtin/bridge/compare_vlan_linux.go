package bridge

import (
	"context"
	"fmt"
	"net"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// vlanInterface compares the interface that is the gateway of a VLAN, and its other end:
// the port of the bridge, which stays behind when the bridge is deleted. The index
// is 0 if it does not exist. An interface that is no veth pair is an administrator's, who
// knows how it reaches the VLAN.
func (c *comparison) vlanInterface() (links.Link, error) {
	name := c.gatewayName()
	lacks := func(l links.Link, wanted, found string, err error) {
		d := compare.Difference{Kind: compare.Interface, Object: l.Name, Wanted: wanted, Found: found, Err: fmt.Errorf("gateway of the VLAN: %w", err)}
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
	return on, c.onBridge(port, c.onHost(), c.access(), c.restoreVLANInterface)
}

// hasPort reports whether the other end of the gateway of a VLAN is a port of the bridge.
func hasPort(on links.Link) bool { return on.Kind == "veth" && !on.Peer.Elsewhere }

// reportedMAC returns the hardware address of an interface of the host in the
// result, or nil.
func (c *comparison) reportedMAC(name string) net.HardwareAddr {
	i := compare.OnHost(c.r, name)
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
	br, err := conn.Link(c.Bridge)
	if err == nil {
		err = c.fits(br)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if !c.made.is(br) {
		return nil
	}
	on, err := c.ensureVLANInterface(conn, c.r, br, c.reportedMAC(c.gatewayName()))
	if err == nil {
		on, err = conn.LinkByIndex(on.Index)
	}
	if err != nil {
		return err
	}
	if hasPort(on) {
		port, err := conn.LinkByIndex(on.Peer.Index)
		if err == nil {
			err = c.access().restorePort(ctx, conn, port)
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
