package links

import (
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
	err = c.list(m, func() { all = make(map[int]VLANs) }, func(body []byte) error {
		p, err := parsePort(body)
		if len(p.VLANs) > 0 {
			all[p.Interface] = append(all[p.Interface], p.VLANs...)
		}
		return err
	})
	return all, err
}

// VLANs returns the VLANs of one port. It reads those of all.
func (c *Conn) VLANs(index int) (VLANs, error) {
	all, err := c.PortVLANs()
	return all[index], err
}

// parsePort reads the body of an RTM_NEWLINK of the family of bridges.
func parsePort(body []byte) (p HeardPort, err error) {
	var r reader
	all := r.attributes(body, unix.SizeofIfInfomsg)
	if r.err != nil || body[0] != unix.AF_BRIDGE { // a kernel without bridges lists interfaces
		return HeardPort{}, r.err
	}
	p.Interface = int(nl.DeserializeIfInfomsg(body).Index)
	if settings := all.get(unix.IFLA_PROTINFO); settings != nil {
		mode := portMode(r.attributes(settings, 0))
		p.Mode = &mode
	}
	from := uint16(0) // of a range that has begun
	for typ, value := range r.attributes(all.get(unix.IFLA_AF_SPEC), 0).each {
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
	return p, r.err
}
