package testhost

import (
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// Outside makes the world beyond the host: a namespace with 192.0.2.2 and
// 2001:db8::2, which the host reaches as 192.0.2.1 and 2001:db8::1.
func (h *RealHost) Outside() string {
	h.T.Helper()
	path := h.Container("outside")
	h.VethPair("wan0", "wan1")
	h.MoveLink("wan1", path)
	configure := func(link, v4, v6 string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		for _, text := range []string{v4, v6} {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	expect.NoError(h.T, configure("wan0", "192.0.2.1/24", "2001:db8::1/64"))
	h.Inside(path, func() error { return configure("wan1", "192.0.2.2/24", "2001:db8::2/64") })
	return path
}

// MoveLink moves an interface of the host into the namespace at path.
func (h *RealHost) MoveLink(name, path string) {
	h.T.Helper()
	link, err := netlink.LinkByName(name)
	expect.NoError(h.T, err)
	ns, err := netns.Open(path)
	expect.NoError(h.T, err)
	expect.NoError(h.T, errors.Join(netlink.LinkSetNsFd(link, int(ns.File().Fd())), ns.Close()))
}
