package links

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Bridge is a bridge to create.
type Bridge struct {
	Name          string
	MTU           int // 0 is the kernel's default
	VLANFiltering bool
	MAC           net.HardwareAddr // nil: a random one
}

// Create creates the bridge, down, with a fixed MAC address. Without one, the
// kernel changes the address as ports come and go. The error wraps EEXIST if
// there is an interface of this name.
func (b Bridge) Create(c *Conn) (Link, error) {
	if err := validName(b.Name); err != nil {
		return Link{}, fmt.Errorf("create bridge %q: %w", b.Name, err)
	}
	if b.MAC == nil {
		mac, err := randomMAC()
		if err != nil {
			return Link{}, err
		}
		b.MAC = mac
	}
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK|unix.NLM_F_ECHO, ifinfo(0, 0, 0))
	m.str(unix.IFLA_IFNAME, b.Name)
	m.attr(unix.IFLA_ADDRESS, b.MAC)
	if b.MTU != 0 {
		m.u32(unix.IFLA_MTU, uint32(b.MTU))
	}
	m.nest(unix.IFLA_LINKINFO, func() {
		m.str(unix.IFLA_INFO_KIND, "bridge")
		if b.VLANFiltering {
			m.nest(unix.IFLA_INFO_DATA, func() { m.u8(unix.IFLA_BR_VLAN_FILTERING, true) })
		}
	})
	l, err := create(c, m, b.Name)
	if err != nil {
		return Link{}, fmt.Errorf("create bridge %q: %w", b.Name, err)
	}
	return l, nil
}

// Ifb is a device of type ifb to create: packets that are redirected to it go
// through its queues.
type Ifb struct {
	Name string
	MTU  int
	MAC  net.HardwareAddr // nil: the kernel chooses one
}

// Create creates the device, up, without a queue of its own. The error wraps
// EEXIST if there is an interface of this name, and EOPNOTSUPP if the kernel
// does not support the type.
func (i Ifb) Create(c *Conn) (Link, error) {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK|unix.NLM_F_ECHO, ifinfo(0, unix.IFF_UP, unix.IFF_UP))
	m.str(unix.IFLA_IFNAME, i.Name)
	if i.MAC != nil {
		m.attr(unix.IFLA_ADDRESS, i.MAC)
	}
	m.u32(unix.IFLA_MTU, uint32(i.MTU))
	m.u32(unix.IFLA_TXQLEN, 0)
	m.nest(unix.IFLA_LINKINFO, func() { m.str(unix.IFLA_INFO_KIND, "ifb") })
	return create(c, m, i.Name)
}

// Enslave makes an interface a port of a bridge. A port of another bridge
// changes over.
func (c *Conn) Enslave(index, bridge int) error {
	m := newMessage(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0))
	m.u32(unix.IFLA_MASTER, uint32(bridge))
	return c.execute(m, nil)
}

// PortMode holds settings of a bridge port.
type PortMode struct{ Hairpin, Isolated bool }

// SetPortMode turns on the modes of a port that are set. A new port has none.
func (c *Conn) SetPortMode(index int, p PortMode) error {
	if p == (PortMode{}) {
		return nil
	}
	info := ifinfo(index, 0, 0)
	info[0] = unix.AF_BRIDGE
	m := newMessage(unix.RTM_SETLINK, unix.NLM_F_ACK, info)
	m.nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, func() { m.portMode(p) })
	if err := c.execute(m, nil); err != nil {
		return fmt.Errorf("set the mode of a bridge port: %w", err)
	}
	return nil
}

// portMode adds the modes that are set.
func (m *message) portMode(p PortMode) {
	if p.Hairpin {
		m.u8(unix.IFLA_BRPORT_MODE, true)
	}
	if p.Isolated {
		m.u8(unix.IFLA_BRPORT_ISOLATED, true)
	}
}

// VLAN is a VLAN of a port.
type VLAN struct {
	ID uint16
	// Access makes it the port's own VLAN: untagged packets that arrive belong to
	// it, and its packets leave untagged.
	Access bool
}

// AddVLAN makes a port a member of a VLAN.
func (c *Conn) AddVLAN(index int, v VLAN) error {
	var flags uint16
	if v.Access {
		flags = vlanAccess | vlanUntagged
	}
	return changeVLAN(c, unix.RTM_SETLINK, index, v.ID, flags)
}

// DeleteVLAN removes a port from a VLAN.
func (c *Conn) DeleteVLAN(index int, id uint16) error {
	return changeVLAN(c, unix.RTM_DELLINK, index, id, 0)
}

// <linux/if_bridge.h>
const (
	bridgeFlags  = 0 // IFLA_BRIDGE_FLAGS
	bridgeVLAN   = 2 // IFLA_BRIDGE_VLAN_INFO
	ofMaster     = 1 // BRIDGE_FLAGS_MASTER
	vlanAccess   = 2 // BRIDGE_VLAN_INFO_PVID
	vlanUntagged = 4 // BRIDGE_VLAN_INFO_UNTAGGED
)

func changeVLAN(c *Conn, typ uint16, index int, id, flags uint16) error {
	info := ifinfo(index, 0, 0)
	info[0] = unix.AF_BRIDGE
	m := newMessage(typ, unix.NLM_F_ACK, info)
	m.nest(unix.IFLA_AF_SPEC, func() {
		m.attr(bridgeFlags, native.AppendUint16(nil, ofMaster))
		m.attr(bridgeVLAN, native.AppendUint16(native.AppendUint16(nil, flags), id))
	})
	return c.execute(m, nil)
}
