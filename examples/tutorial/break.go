package main

import (
	"net"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/netns"
)

// deleteRoute deletes a container's default route, as somebody could by mistake.
func deleteRoute(container string) error {
	return netns.Do(container, func() error {
		return netlink.RouteDel(&netlink.Route{Gw: net.IPv4(10, 88, 0, 1)})
	})
}
