package testhost

import (
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// Outside makes the world beyond the host: a namespace with 192.0.2.2 and
// 2001:db8::2, which the host reaches as 192.0.2.1 and 2001:db8::1.
func (h *RealHost) Outside() string {
	h.T.Helper()
	path := h.Container("outside")
	h.VethPair("wan0", "wan1")
	h.MoveLink("wan1", path)
	h.Configure("", "wan0", "192.0.2.1/24", "2001:db8::1/64")
	h.Configure(path, "wan1", "192.0.2.2/24", "2001:db8::2/64")
	return path
}

// Configure gives addresses to an interface of the namespace at path, or of the host if
// path is empty, and sets it up.
func (h *RealHost) Configure(path, link string, addresses ...string) {
	h.T.Helper()
	h.with(path, func(ns *netns.Handle) {
		for _, address := range addresses {
			nettest.AddAddress(h.T, ns, link, address)
		}
		nettest.SetUp(h.T, ns, link)
	})
}

// Change runs f for an interface of the namespace at path, or of the host if path is empty.
func (h *Host) Change(path, name string, f func(*netlink.Handle, netlink.Link) error) {
	h.T.Helper()
	h.with(path, func(ns *netns.Handle) { nettest.Change(h.T, ns, name, f) })
}

// Link returns the present state of such an interface.
func (h *Host) Link(path, name string) (found netlink.Link) {
	h.T.Helper()
	h.with(path, func(ns *netns.Handle) { found = nettest.Link(h.T, ns, name) })
	return found
}

// DelLink deletes a container's interface, which must be there.
func (h *Host) DelLink(container, name string) {
	h.T.Helper()
	h.Change(h.Path("netns", container), name, (*netlink.Handle).LinkDel)
}

// MoveLink moves an interface of the host into the namespace at path.
func (h *RealHost) MoveLink(name, path string) {
	h.T.Helper()
	link := expect.Value(netlink.LinkByName(name))(h.T)
	h.with(path, func(ns *netns.Handle) { expect.NoError(h.T, netlink.LinkSetNsFd(link, int(ns.File().Fd()))) })
}
