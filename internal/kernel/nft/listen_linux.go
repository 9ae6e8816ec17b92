package nft

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/netns"
)

// Listener reports changes of the rules of a namespace by others. One goroutine at a time
// may use it.
type Listener struct {
	socket *links.Socket
	takes  bool // the transaction whose announcements come now takes something away
}

// Listen begins to watch for changes in a namespace. The caller closes the Listener.
// The size of the buffer is that of [links.Subscribe].
func Listen(ns *netns.Handle, buffer int) (*Listener, error) {
	s, err := links.Subscribe(ns, unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTABLES-1), buffer)
	if err != nil {
		return nil, err
	}
	return &Listener{socket: s}, nil
}

// Change is a transaction in which something was deleted, replaced or renamed, by another
// program. Those that only add, and those of a [Conn], of any process, are not reported.
type Change struct {
	Name string // of the thread that made it, as the kernel shows it
}

// Next waits for changes and calls each with them, in order. Lost reports whether the
// kernel has dropped some. If the context ends, the error is its cause.
func (l *Listener) Next(ctx context.Context, each func(Change)) (lost bool, err error) {
	return l.socket.Next(ctx, func(m links.Message) {
		if c, ok := l.hear(m); ok {
			each(c)
		}
	})
}

// Close ends the listener.
func (l *Listener) Close() error { return l.socket.Close() }

// hear takes an announcement in, and returns the change that ends with it. The kernel
// announces one transaction after the other, each with NFT_MSG_NEWGEN at its end
// (nf_tables_commit).
func (l *Listener) hear(m links.Message) (c Change, ends bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < netfilterHeader || isOwnPort(m.Header.Pid) {
		return c, false
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWGEN:
		ends, l.takes = l.takes, false
		return Change{unix.ByteSliceToString(attribute(body(m.Data), unix.NFTA_GEN_PROC_NAME))}, ends
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		l.takes = true
	case unix.NFT_MSG_NEWCHAIN:
		// A new name is announced like a new chain, without this flag (since Linux 5.15;
		// older kernels do not tell).
		l.takes = l.takes || m.Header.Flags&unix.NLM_F_CREATE == 0
	}
	return c, false
}
