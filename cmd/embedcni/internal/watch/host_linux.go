package watch

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// host hears of changes in the host's network namespace.
type host struct {
	ns      *netns.Handle
	sockets []*nl.NetlinkSocket
}

// openHost listens in the namespace at path, or in the calling thread's.
func openHost(path string) (_ *host, err error) {
	h := &host{}
	if path == "" {
		h.ns, err = netns.Current()
	} else {
		h.ns, err = netns.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("host's network namespace: %w", err)
	}
	for _, l := range []struct {
		protocol int
		groups   []uint
	}{
		{unix.NETLINK_ROUTE, []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE}},
		{unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}},
	} {
		if err := h.subscribe(l.protocol, l.groups); err != nil {
			return nil, joined.Errors(err, h.close())
		}
	}
	return h, nil
}

// bufferSize has room for the announcements of a bridge with a thousand ports.
const bufferSize = 8 << 20

func (h *host) subscribe(protocol int, groups []uint) error {
	var s *nl.NetlinkSocket
	err := h.ns.Do(func() (err error) {
		s, err = nl.Subscribe(protocol, groups...)
		return err
	})
	if err != nil {
		return fmt.Errorf("listen to the kernel: %w", err)
	}
	h.sockets = append(h.sockets, s)
	// Without the privilege the buffer is smaller; what then overflows is noticed as a change.
	if err := s.SetReceiveBufferSize(bufferSize, true); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("listen to the kernel: %w", err)
	}
	return nil
}

func (h *host) close() error {
	for _, s := range h.sockets {
		s.Close()
	}
	return h.ns.Close()
}

// listen calls changed after each announcement, until ctx ends.
func (h *host) listen(ctx context.Context, changed func()) error {
	errs := make(chan error, len(h.sockets))
	for _, s := range h.sockets {
		defer context.AfterFunc(ctx, s.Close)()
		go func() { errs <- receive(s, changed) }()
	}
	err := <-errs
	for _, s := range h.sockets {
		s.Close() // ends the others
	}
	for range len(h.sockets) - 1 {
		<-errs
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func receive(s *nl.NetlinkSocket, changed func()) error {
	for {
		_, _, err := s.Receive()
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // some were dropped
			changed()
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, os.ErrClosed):
			return nil
		default:
			return fmt.Errorf("listen to the kernel: %w", err)
		}
	}
}
