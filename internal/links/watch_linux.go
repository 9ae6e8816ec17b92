package links

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Watch reports that an interface or an IPv6 address of a namespace has changed.
// The caller then reads their state itself, because the kernel drops messages
// when there are too many.
//
// A caller that starts to watch, then looks, and then waits misses no change.
type Watch struct {
	file *os.File
	buf  []byte
}

// The rtnetlink(7) groups to which the kernel sends changes.
const (
	groupLinks      = 1 << (unix.RTNLGRP_LINK - 1)
	groupAddresses6 = 1 << (unix.RTNLGRP_IPV6_IFADDR - 1)
)

// WatchAddresses starts to watch a namespace. The caller must close the Watch.
func WatchAddresses(ns *netns.Handle) (*Watch, error) {
	fd := -1
	err := thread.In(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket in namespace %s: %w", ns.ID(), err)
	}
	w := &Watch{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, bufferSize)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groupLinks | groupAddresses6}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the addresses of namespace %s: %w", ns.ID(), err), w.Close())
	}
	return w, nil
}

// Wait returns when something has changed since the last Wait, or since the
// Watch began. If the context ends, it returns the context's cause.
func (w *Watch) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := w.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	interrupted := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })
	defer interrupted()
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	heard := false
	err = raw.Read(func(fd uintptr) bool {
		for {
			_, _, err := unix.Recvfrom(int(fd), w.buf, 0)
			switch {
			case err == nil, errors.Is(err, unix.ENOBUFS): // so many that some were lost
				heard = true
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return heard
			default:
				failed = err
				return true
			}
		}
	})
	switch {
	case heard && failed == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("read changes of addresses: %w", errors.Join(err, failed))
}

// Close ends the watch.
func (w *Watch) Close() error { return w.file.Close() }
