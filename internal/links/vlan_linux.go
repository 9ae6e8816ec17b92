package links

import (
	"slices"

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

// The attribute of a VLAN (struct bridge_vlan_info of <linux/if_bridge.h>), and what to
// ask for (<linux/rtnetlink.h>).
const (
	sizeofVLANInfo = 4
	vlanRangeBegin = 8  // BRIDGE_VLAN_INFO_RANGE_BEGIN
	vlanRangeEnd   = 16 // BRIDGE_VLAN_INFO_RANGE_END
	withVLANs      = 4  // RTEXT_FILTER_BRVLAN_COMPRESSED
)

// PortVLANs returns the VLANs of all ports of bridges, by the index of the interface. The
// kernel lists them for all interfaces only. A bridge is listed as a port of its own. A
// kernel whose bridges do not know VLANs lists none.
func (c *Conn) PortVLANs() (all map[int]VLANs, err error) {
	info := ifinfo(0, 0, 0)
	info[0] = unix.AF_BRIDGE
	m := newMessage(unix.RTM_GETLINK, unix.NLM_F_DUMP, info)
	m.u32(unix.IFLA_EXT_MASK, withVLANs)
	err = c.list(m, func() { all = make(map[int]VLANs) }, func(body []byte) error {
		index, vlans, err := parseVLANs(body)
		if len(vlans) > 0 {
			all[index] = append(all[index], vlans...)
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

// parseVLANs reads the body of an RTM_NEWLINK of the family of bridges.
func parseVLANs(body []byte) (index int, all VLANs, err error) {
	if len(body) < unix.SizeofIfInfomsg {
		return 0, nil, errTruncated
	}
	if body[0] != unix.AF_BRIDGE { // a kernel without bridges lists interfaces
		return 0, nil, nil
	}
	index = int(native.Uint32(body[4:]))
	var spec []byte
	err = eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
		if typ == unix.IFLA_AF_SPEC {
			spec = value
		}
	})
	if err != nil {
		return index, nil, err
	}
	from := uint16(0) // of a range that has begun
	err = eachAttr(spec, func(typ uint16, value []byte) {
		if typ != bridgeVLAN || len(value) < sizeofVLANInfo {
			return
		}
		flags, id := native.Uint16(value), native.Uint16(value[2:])
		if flags&vlanRangeBegin != 0 {
			from = id
			return
		}
		r := VLANRange{First: id, Last: id, Access: flags&(vlanAccess|vlanUntagged) == vlanAccess|vlanUntagged}
		if flags&vlanRangeEnd != 0 {
			r.First = from
		}
		all = append(all, r)
	})
	return index, all, err
}
