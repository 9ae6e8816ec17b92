package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// ensureBridge returns the bridge, up and as configured. It creates a missing
// one. Many attachments may do this at once.
func (a *attachment) ensureBridge(ctx context.Context, conn *links.Conn, host *netns.Handle) (br links.Link, made bool, err error) {
	br, err = conn.Link(a.Bridge)
	if links.NotFound(err) || err == nil && br.Alias != alias {
		br, made, err = a.findOrCreate(ctx, conn, host)
	}
	if err == nil {
		err = a.prepareBridge(conn, host, br)
	}
	return br, made, err
}

// findOrCreate returns the bridge, or creates it. Of one plugin's attachments, one
// creates and marks it, and the others wait for both. If containers are on record for
// which an ADD made the bridge, somebody has deleted it. They know its hardware address,
// so that it comes back with that, as from Repair.
func (a *attachment) findOrCreate(ctx context.Context, conn *links.Conn, host *netns.Handle) (br links.Link, made bool, err error) {
	a.plugin.making.Lock()
	defer a.plugin.making.Unlock()
	br, err = conn.Link(a.Bridge)
	if !links.NotFound(err) {
		return br, false, err
	}
	again := links.Bridge{Name: a.Bridge, MTU: a.MTU, VLANFiltering: a.filtersVLANs()}
	if m, err := madeForOthers(caller.From(ctx).Record, a.Bridge); err != nil {
		return br, false, err
	} else if m != nil {
		again = m.bridge(a.config)
	}
	return a.createBridge(conn, host, again)
}

// prepareBridge sets the bridge up if it fits the configuration.
func (c *config) prepareBridge(conn *links.Conn, host *netns.Handle, br links.Link) error {
	if err := c.fits(br); err != nil {
		return err
	}
	var flags uint32 = unix.IFF_UP
	if c.PromiscMode {
		flags |= unix.IFF_PROMISC
	}
	if br.Flags&flags != flags {
		if err := conn.Change(br.Index, links.Change{Set: flags}); err != nil {
			return fmt.Errorf("set bridge %q up: %w", c.Bridge, err)
		}
	}
	if ra := veth.NoRA(c.Bridge); !br.Has(ra) {
		if err := links.WriteSysctls(host, ra); err != nil {
			return err
		}
	}
	return nil
}

// fits returns an error if the interface cannot serve as the bridge.
func (c *config) fits(br links.Link) error {
	if br.Kind != "bridge" {
		return invalid(`"bridge": interface %q exists and is not a bridge, but %q`, c.Bridge, br.Kind)
	}
	if c.filtersVLANs() && !br.VLANFiltering {
		return invalid(`"vlan", "vlanTrunk": bridge %q does not keep VLANs apart: `+
			`set its vlan_filtering to 1; if it cannot be set, this kernel was built without BRIDGE_VLAN_FILTERING`, c.Bridge)
	}
	return nil
}

// createBridge creates the bridge with the alias that says who made it and its
// link-local address, and leaves it down. With the address, the host can forward
// to it as soon as there is a container.
func (c *config) createBridge(conn *links.Conn, host *netns.Handle, b links.Bridge) (br links.Link, made bool, err error) {
	br, err = b.Create(conn)
	if errors.Is(err, unix.EEXIST) { // another attachment was faster
		br, err = conn.Link(b.Name)
		return br, false, err
	}
	if err != nil {
		return br, false, err
	}
	if err := mark(conn, br.Index); err != nil {
		return br, false, fmt.Errorf("bridge %q: %w", b.Name, err)
	}
	br.Alias = alias
	_, err = conn.LinkLocal(host, br)
	return br, err == nil, err
}

// mode returns the mode of the bridge port.
func (c *config) mode() links.PortMode {
	return links.PortMode{Hairpin: c.HairpinMode, Isolated: c.PortIsolation}
}

// join adds a new port to the VLANs. The container's end stays down until then.
func (c *config) join(conn *links.Conn, br, port links.Link) error {
	vlans := c.vlans()
	if len(vlans) > 0 && !c.PreserveDefaultVLAN && br.DefaultVLAN != 0 {
		// The only VLAN of a new port.
		if err := conn.DeleteVLAN(port.Index, br.DefaultVLAN); err != nil {
			return fmt.Errorf(`"preserveDefaultVlan": take interface %q out of VLAN %d: %w`, port.Name, br.DefaultVLAN, err)
		}
	}
	for _, v := range vlans {
		if err := conn.AddVLAN(port.Index, v); err != nil {
			return fmt.Errorf(`"vlan", "vlanTrunk": put interface %q in VLAN %d: %w`, port.Name, v.ID, err)
		}
	}
	return nil
}

// gatewayName returns the name of the interface that has the addresses of gateways: the
// bridge, or in a VLAN one of its own.
func (c *config) gatewayName() string {
	if c.VLAN == 0 {
		return c.Bridge
	}
	return fmt.Sprintf("%s.%d", c.Bridge, c.VLAN)
}

// access is the configuration of the port that leads to the gateway of a VLAN.
func (c *config) access() *config {
	return &config{Bridge: c.Bridge, VLAN: c.VLAN, PreserveDefaultVLAN: c.PreserveDefaultVLAN}
}

// ensureVLANInterface returns the interface that is the gateway of a VLAN: the
// outer end of a pair whose inner end is a port of the bridge in that VLAN. A new
// one gets the MAC address, or a random one.
func (c *config) ensureVLANInterface(conn *links.Conn, r *plugin.Request, br links.Link, mac net.HardwareAddr) (links.Link, error) {
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
	if err := c.access().join(conn, br, pair.Host); err != nil {
		return links.Link{}, errors.Join(err, conn.Delete(pair.Host.Index))
	}
	if err := setUp(conn, r.Host, pair.Container.Index); err != nil {
		return links.Link{}, errors.Join(fmt.Errorf("set interface %q up: %w", name, err), conn.Delete(pair.Host.Index))
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
	if _, err := conn.LinkLocal(host, link); err != nil {
		return err
	}
	return conn.Change(index, links.Change{Set: unix.IFF_UP})
}
