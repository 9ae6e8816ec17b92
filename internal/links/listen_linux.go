package links

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Listener reports the changes of a namespace. One goroutine at a time may use it.
type Listener struct{ socket *Socket }

// Changes are the kinds of changes that a Listener reports.
type Changes struct {
	Links, Addresses, Routes bool
	Queues                   bool // and the filters of queues
	// Buffer is the size of the kernel's buffer for those not received yet; 0 leaves
	// it to the system.
	Buffer int
}

// Listen begins to watch for changes in a namespace. The caller closes the Listener.
func Listen(ns *netns.Handle, of Changes) (*Listener, error) {
	var groups uint32
	if of.Links {
		groups |= bit32(unix.RTNLGRP_LINK)
	}
	if of.Addresses {
		groups |= bit32(unix.RTNLGRP_IPV4_IFADDR) | bit32(unix.RTNLGRP_IPV6_IFADDR)
	}
	if of.Routes {
		groups |= bit32(unix.RTNLGRP_IPV4_ROUTE) | bit32(unix.RTNLGRP_IPV6_ROUTE)
	}
	if of.Queues {
		groups |= bit32(unix.RTNLGRP_TC)
	}
	s, err := Subscribe(ns, unix.NETLINK_ROUTE, groups, of.Buffer)
	if err != nil {
		return nil, err
	}
	return &Listener{s}, nil
}

// Announcement is an announced change: of what is set, or of an address or a route that
// is gone.
type Announcement struct {
	Gone       bool // deleted, or moved to another namespace; else it is new or changed
	Link       *Link
	Queue      *HeardQueue
	BridgePort *HeardPort // it is never Gone: then Link says so
}

// HeardQueue is a queue, or a filter of one. The kernel does not announce the queues that
// go with their interface.
type HeardQueue struct {
	Kind   string // "tbf", "ingress"; of a filter "u32"
	Filter bool
}

// HeardPort is an interface as the port of a bridge, after a change of anything about
// it, or a bridge as a port of its own. It is announced in full.
type HeardPort struct {
	Interface int // its index
	VLANs     VLANs
	Mode      *PortMode // nil if the announcement does not say
}

// Next waits for changes and calls each with them, in order. Lost reports whether the
// kernel has dropped some. If the context ends, the error is its cause.
func (l *Listener) Next(ctx context.Context, each func(Announcement)) (lost bool, err error) {
	illegible := false
	lost, err = l.socket.Next(ctx, func(m Message) {
		h, ok, err := readAnnouncement(m)
		if err != nil {
			illegible = true
		} else if ok {
			each(h)
		}
	})
	return lost || illegible, err
}

// Close ends the listener.
func (l *Listener) Close() error { return l.socket.Close() }

// readAnnouncement reads an announcement. ok is false if it is about something else.
func readAnnouncement(m Message) (h Announcement, ok bool, err error) {
	typ := m.Header.Type
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_SETLINK:
		got := parse(typ, m.Data)
		ok = h.readLink(typ, got)
		return h, ok, *got.bad
	case unix.RTM_DELADDR:
		return Announcement{Gone: true}, true, nil
	case unix.RTM_DELROUTE:
		got := parse(typ, m.Data)
		routes := parseRoute(nil, got, 0) // none is one that the kernel maintains
		return Announcement{Gone: true}, len(routes) > 0, *got.bad
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		got := parse(typ, m.Data)
		h.Gone = typ == unix.RTM_DELQDISC || typ == unix.RTM_DELTFILTER
		h.Queue = &HeardQueue{got.str(nl.TCA_KIND), typ == unix.RTM_NEWTFILTER || typ == unix.RTM_DELTFILTER}
		return h, true, *got.bad
	}
	return h, false, nil
}

// readLink reads an announcement about an interface. Those of a family are about the
// interface as a port of a bridge, or about its IPv6 settings: an interface that leaves a
// bridge is not deleted. For a port, the type is that of the request that changed it.
func (h *Announcement) readLink(typ uint16, m message) (ok bool) {
	switch family := m.body[0]; {
	case family == unix.AF_UNSPEC && typ != unix.RTM_SETLINK:
		l := parseLink(m)
		h.Gone, h.Link = typ == unix.RTM_DELLINK, &l
	case family == unix.AF_BRIDGE:
		p := parsePort(m)
		h.BridgePort = &p
	default:
		return false
	}
	return true
}

// WatchAddresses begins to watch for changes of interfaces and addresses, for a caller
// who then reads their state itself: one that starts to watch, then looks, and then
// waits misses no change.
func WatchAddresses(ns *netns.Handle) (*Listener, error) {
	return Listen(ns, Changes{Links: true, Addresses: true})
}

// Wait returns when something has changed since the last Wait, or since the
// Listener began. If the context ends, it returns the context's cause.
func (l *Listener) Wait(ctx context.Context) error {
	_, err := l.socket.Next(ctx, func(Message) {})
	return err
}

// bit32 returns the bit of a group in a mask.
func bit32(group int) uint32 { return 1 << (group - 1) }
