package links

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Neighbour is the kernel's entry for a neighbour's address. MAC is empty if the
// kernel knows nothing of it, or has no answer yet.
type Neighbour struct {
	MAC   net.HardwareAddr
	fixed bool // permanent: announcements do not change it
}

// Wrong reports whether the kernel has another hardware address than mac for the
// neighbour and would accept an announcement.
func (n Neighbour) Wrong(mac net.HardwareAddr) bool {
	return len(n.MAC) > 0 && !n.fixed && !bytes.Equal(n.MAC, mac)
}

// Neighbour looks up an IPv4 address behind an interface. Before Linux 5.0 the
// answer is always empty.
func (r *Requests) Neighbour(index int, addr netip.Addr) *Neighbour {
	n := new(Neighbour)
	r.add(neighbour(unix.RTM_GETNEIGH, 0, index, 0, addr), func(body []byte) error {
		if len(body) < unix.SizeofNdMsg {
			return errTruncated
		}
		n.fixed = native.Uint16(body[8:])&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
		return eachAttr(body[unix.SizeofNdMsg:], func(typ uint16, value []byte) {
			if typ == unix.NDA_LLADDR {
				n.MAC = append(net.HardwareAddr(nil), value...)
			}
		})
	}, fmt.Sprintf("neighbour %s", addr), unix.ENOENT, unix.EOPNOTSUPP)
	return n
}

// SetNeighbour replaces the hardware address in a known entry by mac, as an
// announcement would. The kernel soon verifies the entry.
func (r *Requests) SetNeighbour(index int, addr netip.Addr, mac net.HardwareAddr) {
	m := neighbour(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|unix.NLM_F_ACK, index, unix.NUD_STALE, addr)
	m.attr(unix.NDA_LLADDR, mac)
	r.add(m, nil, fmt.Sprintf("correct neighbour %s", addr), unix.ENOENT)
}

// neighbour begins a message about an IPv4 neighbour (struct ndmsg,
// <linux/neighbour.h>).
func neighbour(typ, flags uint16, index int, state uint16, addr netip.Addr) *message {
	fixed := make([]byte, unix.SizeofNdMsg)
	fixed[0] = unix.AF_INET
	native.PutUint32(fixed[4:], uint32(index))
	native.PutUint16(fixed[8:], state)
	m := newMessage(typ, flags, fixed)
	m.attr(unix.NDA_DST, addr.AsSlice())
	return m
}
