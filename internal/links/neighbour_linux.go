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
	asked bool // the kernel has asked for it, and has no answer yet
}

// Wrong reports whether the kernel has another hardware address than mac for the
// neighbour and would accept an announcement.
func (n Neighbour) Wrong(mac net.HardwareAddr) bool {
	return len(n.MAC) > 0 && !n.fixed && !bytes.Equal(n.MAC, mac)
}

// Neighbour looks up an address behind an interface. Before Linux 5.0 the
// answer is always empty.
func (r *Requests) Neighbour(index int, addr netip.Addr) *Neighbour {
	n := new(Neighbour)
	r.add(neighbour(unix.RTM_GETNEIGH, 0, index, 0, addr), func(body []byte) error {
		if len(body) < unix.SizeofNdMsg {
			return errTruncated
		}
		state := native.Uint16(body[8:])
		n.fixed, n.asked = state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0, state&unix.NUD_INCOMPLETE != 0
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

// Resolve has the kernel ask the neighbours at some addresses behind an interface for
// their hardware addresses now. If a question was lost, the kernel itself would repeat it
// after a second, and the packets to the neighbour would wait. An IPv4 neighbour that waits
// for the answer to such a question of its own learns the host's address from this one.
//
// It sends what the kernel would send, and changes no entry that somebody else has made
// permanent. It does not wait for the answers; with unanswered it asks only those whose
// hardware address is not known.
func (c *Conn) Resolve(index int, addrs []netip.Addr, unanswered bool) error {
	ask := c.Requests()
	known := make([]*Neighbour, len(addrs))
	for i, addr := range addrs {
		known[i] = ask.Neighbour(index, addr)
	}
	if err := ask.Send(); err != nil {
		return err
	}
	do := c.Requests()
	for i, addr := range addrs {
		if !unanswered || len(known[i].MAC) == 0 || known[i].asked {
			do.resolve(index, addr, known[i])
		}
	}
	return do.Send()
}

// Unanswered returns those of the addresses behind an interface whose neighbours' hardware
// addresses are not known.
func (c *Conn) Unanswered(index int, addrs []netip.Addr) (left []netip.Addr, err error) {
	ask := c.Requests()
	known := make([]*Neighbour, len(addrs))
	for i, addr := range addrs {
		known[i] = ask.Neighbour(index, addr)
	}
	err = ask.Send()
	for i, addr := range addrs {
		if len(known[i].MAC) == 0 || known[i].asked {
			left = append(left, addr)
		}
	}
	return left, err
}

func (r *Requests) resolve(index int, addr netip.Addr, known *Neighbour) {
	const ack, use = unix.NLM_F_ACK, 1 // NTF_USE
	what := fmt.Sprintf("resolve neighbour %s", addr)
	switch {
	case known.fixed:
		return
	case len(known.MAC) > 0 && !known.asked:
		m := neighbour(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|ack, index, unix.NUD_PROBE, addr)
		m.attr(unix.NDA_LLADDR, known.MAC)
		r.add(m, nil, what, unix.ENOENT) // it has gone by itself
		return
	case known.asked: // the kernel would not ask again yet
		r.add(neighbour(unix.RTM_DELNEIGH, ack, index, 0, addr), nil, what, unix.ENOENT)
	}
	r.add(neighbourWith(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|ack, index, 0, use, addr), nil, what)
}

// neighbour begins a message about a neighbour (struct ndmsg,
// <linux/neighbour.h>).
func neighbour(typ, flags uint16, index int, state uint16, addr netip.Addr) *message {
	return neighbourWith(typ, flags, index, state, 0, addr)
}

// neighbourWith is neighbour with flags of the entry (NTF_).
func neighbourWith(typ, flags uint16, index int, state uint16, entry uint8, addr netip.Addr) *message {
	fixed := make([]byte, unix.SizeofNdMsg)
	fixed[0] = unix.AF_INET
	if addr.Is6() {
		fixed[0] = unix.AF_INET6
	}
	native.PutUint32(fixed[4:], uint32(index))
	native.PutUint16(fixed[8:], state)
	fixed[10] = entry
	m := newMessage(typ, flags, fixed)
	m.attr(unix.NDA_DST, addr.AsSlice())
	return m
}
