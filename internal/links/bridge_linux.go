package links

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NewBridge is a bridge that is to be made.
type NewBridge struct {
	Name          string
	MTU           int // 0 is the kernel's default
	VLANFiltering bool
}

// CreateBridge creates a bridge, down, with a random MAC address that stays.
// Without one, the kernel changes the address as ports come and go. The error
// wraps EEXIST if there is an interface of this name.
func (c *Conn) CreateBridge(b NewBridge) (Link, error) {
	if err := validName(b.Name); err != nil {
		return Link{}, fmt.Errorf("create bridge %q: %w", b.Name, err)
	}
	mac, err := randomMAC()
	if err != nil {
		return Link{}, err
	}
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK|unix.NLM_F_ECHO, ifinfo(0, 0, 0))
	m.str(unix.IFLA_IFNAME, b.Name)
	m.attr(unix.IFLA_ADDRESS, mac)
	if b.MTU != 0 {
		m.u32(unix.IFLA_MTU, uint32(b.MTU))
	}
	m.nest(unix.IFLA_LINKINFO, func() {
		m.str(unix.IFLA_INFO_KIND, "bridge")
		if b.VLANFiltering {
			m.nest(unix.IFLA_INFO_DATA, func() { m.u8(unix.IFLA_BR_VLAN_FILTERING, true) })
		}
	})
	l, err := c.create(m, b.Name)
	if err != nil {
		return Link{}, fmt.Errorf("create bridge %q: %w", b.Name, err)
	}
	return l, nil
}

// Port is how a bridge treats one of its ports.
type Port struct{ Hairpin, Isolated bool }

// SetPort changes what is not zero, which is what a new port has.
func (c *Conn) SetPort(index int, p Port) error {
	if p == (Port{}) {
		return nil
	}
	info := ifinfo(index, 0, 0)
	info[0] = unix.AF_BRIDGE
	m := newMessage(unix.RTM_SETLINK, unix.NLM_F_ACK, info)
	m.nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, func() {
		if p.Hairpin {
			m.u8(nl.IFLA_BRPORT_MODE, true)
		}
		if p.Isolated {
			m.u8(nl.IFLA_BRPORT_ISOLATED, true)
		}
	})
	return c.execute(m, nil)
}

// VLAN is one that a port is a member of.
type VLAN struct {
	ID uint16
	// Access is the port's own: what comes in without a tag belongs to it, and
	// what belongs to it goes out without one.
	Access bool
}

// AddVLAN makes a port a member of a VLAN.
func (c *Conn) AddVLAN(index int, v VLAN) error {
	var flags uint16
	if v.Access {
		flags = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED
	}
	return c.vlan(unix.RTM_SETLINK, index, v.ID, flags)
}

// DeleteVLAN ends the membership.
func (c *Conn) DeleteVLAN(index int, id uint16) error {
	return c.vlan(unix.RTM_DELLINK, index, id, 0)
}

func (c *Conn) vlan(typ uint16, index int, id, flags uint16) error {
	info := ifinfo(index, 0, 0)
	info[0] = unix.AF_BRIDGE
	m := newMessage(typ, unix.NLM_F_ACK, info)
	m.nest(unix.IFLA_AF_SPEC, func() {
		m.attr(nl.IFLA_BRIDGE_FLAGS, native.AppendUint16(nil, nl.BRIDGE_FLAGS_MASTER))
		m.attr(nl.IFLA_BRIDGE_VLAN_INFO, native.AppendUint16(native.AppendUint16(nil, flags), id))
	})
	return c.execute(m, nil)
}
