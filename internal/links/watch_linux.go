package links

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/notify"
	"github.com/embedcni/cni/netns"
)

// Watch reports that an interface or an IPv6 address of a namespace has changed.
// The caller then reads their state itself, because the kernel drops messages
// when there are too many.
//
// A caller that starts to watch, then looks, and then waits misses no change.
type Watch struct{ socket *notify.Socket }

// WatchAddresses starts to watch a namespace. The caller must close the Watch.
func WatchAddresses(ns *netns.Handle) (*Watch, error) {
	s, err := notify.Open(ns, unix.NETLINK_ROUTE, bit32(unix.RTNLGRP_LINK)|bit32(unix.RTNLGRP_IPV6_IFADDR), 0)
	if err != nil {
		return nil, err
	}
	return &Watch{s}, nil
}

// bit32 returns the bit of a group in a mask.
func bit32(group int) uint32 { return 1 << (group - 1) }

// Wait returns when something has changed since the last Wait, or since the
// Watch began. If the context ends, it returns the context's cause.
func (w *Watch) Wait(ctx context.Context) error {
	_, err := w.socket.Next(ctx, func(notify.Message) {})
	return err
}

// Close ends the watch.
func (w *Watch) Close() error { return w.socket.Close() }
