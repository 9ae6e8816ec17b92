package links

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// WatchAddresses begins to watch for changes of interfaces and addresses in a namespace, for
// a caller who then reads the state itself; see [Socket.Wait].
func WatchAddresses(ns *netns.Handle) (*Socket, error) {
	return Subscribe(ns, unix.NETLINK_ROUTE, groups(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR), 0)
}

// Wait returns when something has changed since the last Wait, or since the Socket was
// opened. If the context ends, it returns the context's cause.
func (s *Socket) Wait(ctx context.Context) error {
	_, err := s.Next(ctx, func(Message) {})
	return err
}

// groups is a mask of groups.
func groups(all ...int) (mask uint32) {
	for _, group := range all {
		mask |= 1 << (group - 1)
	}
	return mask
}
