package nettest

import (
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
