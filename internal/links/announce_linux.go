package links

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Announce tells the neighbours of an interface, which must be up, the hardware
// address of its IPv4 addresses. c is a socket in the interface's namespace. The
// kernel sends a gratuitous ARP request (RFC 5944, section 4.6) for each address
// when arp_notify is set and the interface is given the hardware address that it
// already has.
//
// The interface's other end must forward packets already. A bridge port does so
// only after the kernel has noticed the carrier, so the announcement that the
// kernel sends when the interface is set up may be lost.
func (c *Conn) Announce(link Link) error {
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(link.Index, 0, 0), data(unix.IFLA_ADDRESS, link.MAC...))
	if err := c.execute(m, nil); err != nil {
		return fmt.Errorf("announce the addresses of interface %q: %w", link.Name, err)
	}
	return nil
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
func (c *Conn) AnnounceAside(conns *Conns, ns *netns.Handle, link Link, addrs []netip.Addr) error {
	var fd int
	if err := thread.In(ns, func() (err error) {
		fd, err = packetSocket()
		return err
	}); err != nil { // without the capability NET_RAW, for example
		return c.Announce(link)
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
