package bridge

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// vlanInterface compares the interface that is the gateway of a VLAN. Its index
// is 0 if it does not exist.
func (c *comparison) vlanInterface() (on links.Link, all []compare.Difference, err error) {
	name := vlanName(c.Bridge, c.VLAN)
	on, err = c.v.Host.Link(name)
	if links.NotFound(err) {
		d := compare.Difference{
			Kind: compare.Interface, Object: name, Wanted: c.reportedMAC(name).String(), Err: fmt.Errorf("gateway of the VLAN: %w", err),
		}
		return links.Link{}, []compare.Difference{c.onHost().Lacks(d, c.remakeVLANInterface)}, nil
	}
	if err != nil {
		return on, nil, fmt.Errorf("gateway of the VLAN: %w", err)
	}
	if !on.Up() {
		all = append(all, c.onHost().Lacks(compare.Difference{
			Kind: compare.Interface, Object: name, Wanted: "up", Found: "down", Err: fmt.Errorf("gateway of the VLAN: interface %q is down", name),
		}, func(_ context.Context, conn *links.Conn, _ links.Link) error { return setUp(conn, c.r.Host, on.Index) }))
	}
	inner, err := c.vlanPort(on)
	return on, append(all, inner...), err
}

// vlanPort compares the other end of the interface that is the gateway of a VLAN:
// the port of the bridge, which stays behind when the bridge is deleted. An
// interface that is no veth pair is an administrator's, who knows how it reaches
// the VLAN.
func (c *comparison) vlanPort(on links.Link) ([]compare.Difference, error) {
	if on.Kind != "veth" || on.Peer.Elsewhere {
		return nil, nil
	}
	port, err := c.v.Host.LinkByIndex(on.Peer.Index)
	if err != nil {
		return nil, fmt.Errorf("gateway of the VLAN: the other end of interface %q: %w", on.Name, err)
	}
	var all []compare.Difference
	if !port.Up() {
		all = append(all, c.onHost().Lacks(compare.Difference{
			Kind: compare.Interface, Object: port.Name, Wanted: "up", Found: "down", Err: fmt.Errorf("gateway of the VLAN: interface %q is down", port.Name),
		}, func(_ context.Context, conn *links.Conn, _ links.Link) error {
			return conn.Change(port.Index, links.Change{Set: unix.IFF_UP})
		}))
	}
	place := c.onHost()
	place.Name = fmt.Sprintf("interface %q on the host", port.Name)
	place.Find = func(conn *links.Conn) (links.Link, error) { return conn.LinkByIndex(port.Index) }
	place.Same = func(now links.Link) bool { return now.Name == port.Name }
	access := &config{Bridge: c.Bridge, vlanConfig: vlanConfig{VLAN: c.VLAN, PreserveDefaultVLAN: c.PreserveDefaultVLAN}}
	if c.exists && port.Port.Master == c.br.Index {
		lost, err := access.portVLANs(c.v.VLANs, port, place)
		return append(all, lost...), err
	}
	d := compare.Difference{
		Kind: compare.BridgePort, Object: port.Name, Wanted: c.Bridge,
		Err: fmt.Errorf("gateway of the VLAN: interface %q is not on bridge %q", port.Name, c.Bridge),
	}
	var why string
	if d.Found, why, err = c.master(port); err != nil {
		return nil, err
	}
	if why != "" {
		d.Why = why
		return append(all, d), nil
	}
	return append(all, place.Lacks(d, (&comparison{config: access}).enslave)), nil
}

// reportedMAC returns the hardware address of an interface of the host in the
// result, or nil.
func (c *comparison) reportedMAC(name string) net.HardwareAddr {
	if i := reported(c.r, name); i != nil {
		if mac, err := net.ParseMAC(i.Mac); err == nil {
			return mac
		}
	}
	return nil
}

func (c *comparison) remakeVLANInterface(_ context.Context, conn *links.Conn, _ links.Link) error {
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
	_, err = c.ensureVLANInterface(conn, c.r, br, c.reportedMAC(vlanName(c.Bridge, c.VLAN)))
	return err
}
