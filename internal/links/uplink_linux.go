package links

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HasUplink reports whether a bridge has a port through which machines other
// than the containers of this host may be reached. Hardware, a tunnel and a
// virtual machine's interface are such ports. A veth is not, nor is a dummy,
// which leads nowhere. The kernel lists all ports, which takes some µs for each.
func (c *Conn) HasUplink(bridge int) (bool, error) {
	m := newMessage(unix.RTM_GETLINK, unix.NLM_F_DUMP, ifinfo(0, 0, 0))
	m.u32(unix.IFLA_EXT_MASK, withoutStats)
	m.u32(unix.IFLA_MASTER, uint32(bridge)) // old kernels list all interfaces nevertheless
	found := false
	err := c.execute(m, func(body []byte) error {
		if len(body) < unix.SizeofIfInfomsg {
			return errTruncated
		}
		var master uint32
		var kind string
		var nested error
		err := eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
			switch typ {
			case unix.IFLA_MASTER:
				master = number(value)
			case unix.IFLA_LINKINFO:
				nested = eachAttr(value, func(typ uint16, value []byte) {
					if typ == unix.IFLA_INFO_KIND {
						kind = text(value)
					}
				})
			}
		})
		if err == nil {
			err = nested
		}
		found = found || master == uint32(bridge) && kind != "veth" && kind != "dummy"
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list the ports of bridge %d: %w", bridge, err)
	}
	return found, nil
}
