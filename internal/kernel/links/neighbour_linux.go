package links

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
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
func NeighbourAt(c *Conn, index int, addr netip.Addr) (n Neighbour, err error) {
	err = c.do(neighbour(unix.RTM_GETNEIGH, 0, index, 0, addr), func(m message) {
		state := native.Uint16(m.body[8:])
		n.MAC, n.fixed, n.asked = slices.Clone(m.get(unix.NDA_LLADDR)), state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0, state&unix.NUD_INCOMPLETE != 0
	}, fmt.Sprintf("neighbour %s", addr), unix.ENOENT, unix.EOPNOTSUPP)
	return n, err
}

// SetNeighbour replaces the hardware address in a known entry by mac, as an
// announcement would. The kernel soon verifies the entry.
func SetNeighbour(c *Conn, index int, addr netip.Addr, mac net.HardwareAddr) error {
	m := neighbour(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|unix.NLM_F_ACK, index, unix.NUD_STALE, addr, data(unix.NDA_LLADDR, mac...))
	return c.do(m, nil, fmt.Sprintf("correct neighbour %s", addr), unix.ENOENT)
}

// Resolve has the kernel ask the neighbours at some addresses behind an interface for
// their hardware addresses now. If a question was lost, the kernel itself would repeat it
// after a second, and the packets to the neighbour would wait. An IPv4 neighbour that waits
// for the answer to such a question of its own learns the host's address from this one.
//
// It sends what the kernel would send, and changes no entry that somebody else has made
// permanent. It does not wait for the answers; with unanswered it asks only those whose
// hardware address is not known.
func Resolve(c *Conn, index int, addrs []netip.Addr, unanswered bool) error {
	for _, addr := range addrs {
		known, err := NeighbourAt(c, index, addr)
		if err == nil && (!unanswered || !known.answered()) {
			err = resolve(c, index, addr, known)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Unanswered returns those of the addresses behind an interface whose neighbours' hardware
// addresses are not known.
func Unanswered(c *Conn, index int, addrs []netip.Addr) (left []netip.Addr, err error) {
	for _, addr := range addrs {
		known, err := NeighbourAt(c, index, addr)
		if err != nil {
			return nil, err
		}
		if !known.answered() {
			left = append(left, addr)
		}
	}
	return left, nil
}

// answered reports whether the neighbour's hardware address is known.
func (n Neighbour) answered() bool { return len(n.MAC) > 0 && !n.asked }

func resolve(c *Conn, index int, addr netip.Addr, known Neighbour) error {
	const ack = unix.NLM_F_ACK
	what := fmt.Sprintf("resolve neighbour %s", addr)
	switch {
	case known.fixed:
		return nil
	case known.answered():
		m := neighbour(unix.RTM_NEWNEIGH, unix.NLM_F_REPLACE|ack, index, unix.NUD_PROBE, addr, data(unix.NDA_LLADDR, known.MAC...))
		return c.do(m, nil, what, unix.ENOENT) // it has gone by itself
	case known.asked: // the kernel would not ask again yet
		if err := c.do(neighbour(unix.RTM_DELNEIGH, ack, index, 0, addr), nil, what, unix.ENOENT); err != nil {
			return err
		}
	}
	const use = 1 // NTF_USE
	return c.do(request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|ack, ndmsg(index, 0, use, addr), data(unix.NDA_DST, addr.AsSlice()...)), nil, what)
}

// neighbour is a request about a neighbour.
func neighbour(typ, flags, index int, state uint16, addr netip.Addr, attrs ...attribute) *nl.NetlinkRequest {
	return request(typ, flags, ndmsg(index, state, 0, addr), append(attrs, data(unix.NDA_DST, addr.AsSlice()...))...)
}

// ndmsg is the fixed part of a request about a neighbour, a struct ndmsg. With
// netlink's, the linker keeps all kinds of its interfaces.
func ndmsg(index int, state uint16, flags uint8, addr netip.Addr) attribute {
	b := native.AppendUint32([]byte{family(addr), 0, 0, 0}, uint32(index))
	return append(native.AppendUint16(b, state), flags, 0)
}

// Announce tells the neighbours of an interface, which must be up, the hardware
// address of its IPv4 addresses. c is a socket in the interface's namespace. The
// kernel sends a gratuitous ARP request (RFC 5944, section 4.6) for each address
// when arp_notify is set and the interface is given the hardware address that it
// already has.
//
// The interface's other end must forward packets already. A bridge port does so
// only after the kernel has noticed the carrier, so the announcement that the
// kernel sends when the interface is set up may be lost.
func Announce(c *Conn, link Link) error {
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(link.Index, 0, 0), data(unix.IFLA_ADDRESS, link.MAC...))
	return c.do(m, nil, fmt.Sprintf("announce the addresses of interface %q", link.Name))
}

// AnnounceAside is Announce for an interface in ns, but does not wait. A bridge
// delivers a packet to all its ports before the sending call returns, which
// takes milliseconds for a thousand ports, and Announce holds the lock on all
// interfaces meanwhile. With few ports Announce is better, because the next
// deletion of an interface also waits for the packet socket to close
// (packet_release).
//
// The announcement has been sent when conns are closed, or if they are nil when
// AnnounceAside returns, so the end of the program does not prevent it. As with
// the kernel's own announcements, a lost one is not reported.
func AnnounceAside(c *Conn, conns *Conns, ns *netns.Handle, link Link, addrs []netip.Addr) error {
	var fd int
	if err := thread.In(ns, func() (err error) {
		fd, err = packetSocket()
		return err
	}); err != nil { // without the capability NET_RAW, for example
		return Announce(c, link)
	}
	sending := make(chan struct{})
	go func() {
		defer unix.Close(fd)               // nothing is lost with it
		arp := native.Uint16([]byte{8, 6}) // ETH_P_ARP in the order of the network
		to := &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index, Halen: 6, Addr: broadcast}
		close(sending)
		for _, addr := range addrs {
			_ = restart(func() error { return unix.Sendto(fd, gratuitous(link.MAC, addr), 0, to) })
		}
	}()
	if !conns.expect(sending) {
		<-sending
	}
	return nil
}

var broadcast = [8]byte{255, 255, 255, 255, 255, 255}

// packetSocket opens a socket in the namespace of the calling thread that sends
// packets and receives none. Closing it takes a grace period of the kernel.
func packetSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	return fd, nil
}

// gratuitous builds an ARP request of an address's owner for that address (RFC
// 826).
func gratuitous(mac net.HardwareAddr, addr netip.Addr) []byte {
	ip := addr.As4()
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, their lengths, request
	b = append(append(b, mac...), ip[:]...)
	return append(append(b, make([]byte, 6)...), ip[:]...)
}
