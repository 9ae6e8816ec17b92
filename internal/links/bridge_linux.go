package links

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
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
	var own []attribute
	if b.VLANFiltering {
		own = append(own, flag(unix.IFLA_BR_VLAN_FILTERING))
	}
	m := createMessage(0, b.Name, data(unix.IFLA_ADDRESS, b.MAC...), info("bridge", own...))
	if b.MTU != 0 {
		m.AddData(u32(unix.IFLA_MTU, uint32(b.MTU)))
	}
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
	m := createMessage(unix.IFF_UP, i.Name, u32(unix.IFLA_MTU, uint32(i.MTU)), u32(unix.IFLA_TXQLEN, 0), info("ifb"))
	if i.MAC != nil {
		m.AddData(data(unix.IFLA_ADDRESS, i.MAC...))
	}
	return create(c, m, i.Name)
}

// Enslave makes an interface a port of a bridge. A port of another bridge
// changes over.
func (c *Conn) Enslave(index, bridge int) error {
	return c.execute(request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0), u32(unix.IFLA_MASTER, uint32(bridge))), nil)
}

// PortMode holds settings of a bridge port.
type PortMode struct{ Hairpin, Isolated bool }

// SetPortMode turns on the modes of a port that are set. A new port has none.
func (c *Conn) SetPortMode(index int, p PortMode) error {
	if p == (PortMode{}) {
		return nil
	}
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, portinfo(index), nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, p.attributes()...))
	if err := c.execute(m, nil); err != nil {
		return fmt.Errorf("set the mode of a bridge port: %w", err)
	}
	return nil
}

// attributes are those of the modes that are set.
func (p PortMode) attributes() (all []attribute) {
	if p.Hairpin {
		all = append(all, flag(unix.IFLA_BRPORT_MODE))
	}
	if p.Isolated {
		all = append(all, flag(unix.IFLA_BRPORT_ISOLATED))
	}
	return all
}

// portMode reads the modes of a port.
func portMode(port attributes) PortMode {
	return PortMode{Hairpin: port.num(unix.IFLA_BRPORT_MODE) != 0, Isolated: port.num(unix.IFLA_BRPORT_ISOLATED) != 0}
}

// flag is an attribute of one byte that turns something on.
func flag(typ uint16) attribute { return data(typ, 1) }

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
		flags = vlanAccess
	}
	return changeVLAN(c, unix.RTM_SETLINK, index, v.ID, flags)
}

// DeleteVLAN removes a port from a VLAN.
func (c *Conn) DeleteVLAN(index int, id uint16) error {
	return changeVLAN(c, unix.RTM_DELLINK, index, id, 0)
}

// vlanAccess are the flags of a port's own VLAN.
const vlanAccess = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED

func changeVLAN(c *Conn, typ, index int, id, flags uint16) error {
	vlan := nl.BridgeVlanInfo{Flags: flags, Vid: id}
	return c.execute(request(typ, unix.NLM_F_ACK, portinfo(index), nest(unix.IFLA_AF_SPEC,
		data(nl.IFLA_BRIDGE_FLAGS, nl.Uint16Attr(nl.BRIDGE_FLAGS_MASTER)...), data(nl.IFLA_BRIDGE_VLAN_INFO, vlan.Serialize()...))), nil)
}
