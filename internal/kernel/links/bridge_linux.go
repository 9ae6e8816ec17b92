package links

import (
	"errors"
	"fmt"
	"net"
	"slices"

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
		b.MAC = randomMAC()
	}
	var own []attribute
	if b.VLANFiltering {
		own = append(own, flag(unix.IFLA_BR_VLAN_FILTERING))
	}
	l, err := create(c, createMessage(0, b.Name, mac(b.MAC), mtu(b.MTU), info("bridge", own...)), b.Name)
	return l, saying(fmt.Sprintf("create bridge %q", b.Name), err)
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
	return create(c, createMessage(unix.IFF_UP, i.Name, mac(i.MAC), mtu(i.MTU), u32(unix.IFLA_TXQLEN, 0), info("ifb")), i.Name)
}

// Enslave makes an interface a port of a bridge. A port of another bridge
// changes over.
func Enslave(c *Conn, index, bridge int) error {
	return c.execute(request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0), u32(unix.IFLA_MASTER, uint32(bridge))), nil)
}

// PortMode holds settings of a bridge port.
type PortMode struct{ Hairpin, Isolated bool }

// SetPortMode turns on the modes of a port that are set. A new port has none.
func SetPortMode(c *Conn, index int, p PortMode) error {
	if p == (PortMode{}) {
		return nil
	}
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, portinfo(index), nest(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, p.attributes()...))
	return c.do(m, nil, "set the mode of a bridge port")
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
func AddVLAN(c *Conn, index int, v VLAN) error {
	var flags uint16
	if v.Access {
		flags = vlanAccess
	}
	return changeVLAN(c, unix.RTM_SETLINK, index, v.ID, flags)
}

// DeleteVLAN removes a port from a VLAN.
func DeleteVLAN(c *Conn, index int, id uint16) error {
	return changeVLAN(c, unix.RTM_DELLINK, index, id, 0)
}

// vlanAccess are the flags of a port's own VLAN.
const vlanAccess = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED

func changeVLAN(c *Conn, typ, index int, id, flags uint16) error {
	vlan := nl.BridgeVlanInfo{Flags: flags, Vid: id}
	return c.execute(request(typ, unix.NLM_F_ACK, portinfo(index), nest(unix.IFLA_AF_SPEC,
		data(nl.IFLA_BRIDGE_FLAGS, nl.Uint16Attr(nl.BRIDGE_FLAGS_MASTER)...), data(nl.IFLA_BRIDGE_VLAN_INFO, vlan.Serialize()...))), nil)
}

// VLANs are the VLANs of a port of a bridge, in no order.
type VLANs []VLANRange

// VLANRange are VLANs of a port, from one ID to another.
type VLANRange struct {
	First, Last uint16
	Access      bool // see [VLAN]
}

// Find returns the VLAN of that ID, and whether the port is in it.
func (all VLANs) Find(id uint16) (v VLAN, ok bool) {
	i := slices.IndexFunc(all, func(r VLANRange) bool { return r.First <= id && id <= r.Last })
	if i < 0 {
		return v, false
	}
	return VLAN{ID: id, Access: all[i].Access}, true
}

// Access returns the port's own VLAN, or 0.
func (all VLANs) Access() uint16 {
	i := slices.IndexFunc(all, func(r VLANRange) bool { return r.Access })
	if i < 0 {
		return 0
	}
	return all[i].First
}

// PortVLANs returns the VLANs of all ports of bridges, by the index of the interface. The
// kernel lists them for all interfaces only. A bridge is listed as a port of its own. A
// kernel whose bridges do not know VLANs lists none.
func (c *Conn) PortVLANs() (all map[int]VLANs, err error) {
	m := request(unix.RTM_GETLINK, unix.NLM_F_DUMP, portinfo(0), u32(unix.IFLA_EXT_MASK, nl.RTEXT_FILTER_BRVLAN_COMPRESSED))
	err = c.list(m, func() { all = make(map[int]VLANs) }, func(m message) {
		if p := parsePort(m); len(p.VLANs) > 0 {
			all[p.Interface] = append(all[p.Interface], p.VLANs...)
		}
	})
	return all, err
}

// VLANs returns the VLANs of one port. It reads those of all.
func (c *Conn) VLANs(index int) (VLANs, error) {
	all, err := c.PortVLANs()
	return all[index], err
}

// bridgePort is an interface as the port of a bridge, or a bridge as a port of its own.
type bridgePort struct {
	Interface int // its index
	VLANs     VLANs
	Mode      *PortMode // nil if the message does not say
}

// parsePort reads an RTM_NEWLINK of the family of bridges.
func parsePort(m message) (p bridgePort) {
	if m.body[0] != unix.AF_BRIDGE { // a kernel without bridges lists interfaces
		return p
	}
	p.Interface = int(nl.DeserializeIfInfomsg(m.body).Index)
	if settings := m.get(unix.IFLA_PROTINFO); settings != nil {
		mode := portMode(m.within(settings))
		p.Mode = &mode
	}
	from := uint16(0) // of a range that has begun
	for typ, value := range m.nest(unix.IFLA_AF_SPEC).each {
		if typ != nl.IFLA_BRIDGE_VLAN_INFO || len(value) < nl.SizeofBridgeVlanInfo {
			continue
		}
		v := nl.DeserializeBridgeVlanInfo(value)
		if v.Flags&nl.BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
			from = v.Vid
			continue
		}
		one := VLANRange{First: v.Vid, Last: v.Vid, Access: v.Flags&vlanAccess == vlanAccess}
		if v.Flags&nl.BRIDGE_VLAN_INFO_RANGE_END != 0 {
			one.First = from
		}
		p.VLANs = append(p.VLANs, one)
	}
	return p
}

// HasUplink reports whether a bridge has a port through which machines other
// than the containers of this host may be reached. Hardware, a tunnel and a
// virtual machine's interface are such ports. A veth is not, nor is a dummy,
// which leads nowhere. The kernel lists all ports, which takes some µs for each.
func HasUplink(c *Conn, bridge int) (bool, error) {
	m := linkList(u32(unix.IFLA_MASTER, uint32(bridge))) // old kernels list all interfaces nevertheless
	found := false
	err := c.execute(m, func(m message) {
		port := parseLink(m)
		found = found || port.Port.Master == bridge && port.Kind != "veth" && port.Kind != "dummy"
	})
	if err != nil && !errors.Is(err, ErrInterrupted) { // a port that comes or goes meanwhile may be missing
		return false, fmt.Errorf("list the ports of bridge %d: %w", bridge, err)
	}
	return found, nil
}
