package links

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Listener waits for changes in a namespace, for a caller who then reads the state itself.
// One goroutine at a time may use it.
type Listener struct{ socket *Socket }

// WatchAddresses begins to watch for changes of interfaces and addresses. A caller that
// starts to watch, then looks, and then waits misses no change. It closes the Listener.
func WatchAddresses(ns *netns.Handle) (*Listener, error) {
	s, err := Subscribe(ns, unix.NETLINK_ROUTE, groups(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR), 0)
	if err != nil {
		return nil, err
	}
	return &Listener{s}, nil
}

// Wait returns when something has changed since the last Wait, or since the
// Listener began. If the context ends, it returns the context's cause.
func (l *Listener) Wait(ctx context.Context) error {
	_, err := l.socket.Next(ctx, func(Message) {})
	return err
}

// Close ends the listener.
func (l *Listener) Close() error { return l.socket.Close() }

// groups is a mask of groups.
func groups(all ...int) (mask uint32) {
	for _, group := range all {
		mask |= 1 << (group - 1)
	}
	return mask
}
