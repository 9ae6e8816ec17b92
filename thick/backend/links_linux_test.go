package backend_test

import "github.com/vishvananda/netlink"

// linksTo appends the names of all interfaces.
func linksTo(names *[]string) func(*netlink.Handle) error {
	return func(h *netlink.Handle) error {
		all, err := h.LinkList()
		for _, l := range all {
			*names = append(*names, l.Attrs().Name)
		}
		return err
	}
}
