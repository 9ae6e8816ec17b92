package nettest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// SetUp sets interfaces of a namespace up.
func SetUp(t testing.TB, ns *netns.Handle, names ...string) {
	t.Helper()
	for _, name := range names {
		Change(t, ns, name, (*netlink.Handle).LinkSetUp)
	}
}

// Attrs returns the attributes of a new interface.
func Attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// AddBridge makes a bridge, which is down.
func AddBridge(t testing.TB, ns *netns.Handle, name string) {
	t.Helper()
	Inside(t, ns, func(nl *netlink.Handle) error { return nl.LinkAdd(&netlink.Bridge{LinkAttrs: Attrs(name)}) })
}

// Change runs f for an interface.
func Change(t testing.TB, ns *netns.Handle, name string, f func(*netlink.Handle, netlink.Link) error) {
	t.Helper()
	Inside(t, ns, func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		return f(nl, link)
	})
}

// OnLink runs f for an interface of this thread's namespace.
func OnLink(name string, f func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return f(link)
}

// Sniff makes a socket receive everything on an interface of this thread's namespace until
// it is closed, as tcpdump does.
func Sniff(name string) (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), errors.Join(OnLink(name, func(link netlink.Link) error {
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(link.Attrs().Index), Type: unix.PACKET_MR_PROMISC})
	}), OnLink(name, func(link netlink.Link) error {
		if link.Attrs().Promisc == 0 {
			return fmt.Errorf("%s is not in promiscuous mode", name)
		}
		return nil
	}))
}

// Link returns the present state of an interface.
func Link(t testing.TB, ns *netns.Handle, name string) (found netlink.Link) {
	t.Helper()
	Change(t, ns, name, func(_ *netlink.Handle, link netlink.Link) error {
		found = link
		return nil
	})
	return found
}

// AddAddress adds an address to an interface. An IPv6 address gets no duplicate
// detection.
func AddAddress(t testing.TB, ns *netns.Handle, name, address string) {
	t.Helper()
	Change(t, ns, name, func(nl *netlink.Handle, link netlink.Link) error {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		return nl.AddrAdd(link, a)
	})
}
