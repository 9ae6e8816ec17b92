// Package links makes and changes network interfaces over netlink, from
// outside of the namespace that they are in.
package links

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Open opens a route netlink socket in a namespace. The thread is inside for
// the one system call that makes the socket. The caller closes it.
func Open(ns *netns.Handle) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket in namespace %s: %w", ns.ID(), err)
	}
	return h, nil
}

// NotFound tells whether an error means that there is no such interface.
func NotFound(err error) bool {
	return errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV)
}
