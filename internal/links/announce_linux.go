package links

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Announce tells the neighbours of an interface, which is up and whose socket c
// is, which hardware address its IPv4 addresses have now: by a gratuitous ARP
// request (RFC 5944, section 4.6) for each, which the kernel sends, as the
// interface has arp_notify, when it is given the hardware address that it has.
//
// What the interface is connected to must pass on packets already. The port of a
// bridge does so when the kernel has noticed that there is a carrier. So that
// which the kernel sends by itself when the interface is set up may be lost.
func (c *Conn) Announce(link Link) error {
	m := newMessage(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(link.Index, 0, 0))
	m.attr(unix.IFLA_ADDRESS, link.MAC)
	if err := c.execute(m, nil); err != nil {
		return fmt.Errorf("announce the addresses of interface %q: %w", link.Name, err)
	}
	return nil
}

// AnnounceAside is Announce for an interface in ns, but does not wait for it: a
// bridge delivers a packet to all its ports before the call that sends it
// returns, which takes milliseconds if they are a thousand, and Announce holds
// the lock on all interfaces meanwhile. Where they are few Announce is better, as
// the next deletion of an interface waits for the end of the packet socket, too
// (packet_release).
//
// The announcement is on its way when the Conns of the context are closed, or if
// there are none when AnnounceAside returns, so that the end of the program does
// not prevent it. As with the kernel's own, nobody hears of one that is lost.
func (c *Conn) AnnounceAside(ctx context.Context, ns *netns.Handle, link Link, addrs []netip.Addr) error {
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
	if all, _ := ctx.Value(connsKey{}).(*Conns); !all.expect(sending) {
		<-sending
	}
	return nil
}

var broadcast = [8]byte{255, 255, 255, 255, 255, 255}

// packetSocket opens a socket in the namespace of the calling thread that
// packets are sent by, and none received. To close it takes a grace period of
// the kernel.
func packetSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	return fd, nil
}

// gratuitous is an ARP request for an address by who has it (RFC 826).
func gratuitous(mac net.HardwareAddr, addr netip.Addr) []byte {
	ip := addr.As4()
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, their lengths, request
	b = append(append(b, mac...), ip[:]...)
	return append(append(b, make([]byte, 6)...), ip[:]...)
}
