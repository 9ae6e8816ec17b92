package links

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/notify"
	"github.com/embedcni/cni/netns"
)

// Listener reports the changes of a namespace. One goroutine at a time may use it.
type Listener struct{ socket *notify.Socket }

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
	s, err := notify.Open(ns, unix.NETLINK_ROUTE, groups, of.Buffer)
	if err != nil {
		return nil, err
	}
	return &Listener{s}, nil
}

// Announcement is an announced change. One of Link, Address, Routes, Queue and BridgePort
// is set.
type Announcement struct {
	Gone bool // deleted, or moved to another namespace; else it is new or changed
	// Port is that of the socket with whose request the change came; 0 if the kernel
	// does not say. It says so for addresses and routes, and for interfaces since
	// Linux 6.2; not for what follows from another change.
	Port uint32

	Link    *Link
	Address *HeardAddress
	Routes  []Route // the ways of one route
	Queue   *HeardQueue

	BridgePort *HeardPort // it is never Gone: then Link says so
}

// HeardAddress is an address of an interface.
type HeardAddress struct {
	Interface int // its index
	Address   netip.Prefix
}

// HeardQueue is a queue of an interface, or a filter of one. The kernel does not
// announce the queues that go with their interface.
type HeardQueue struct {
	Interface int    // its index
	Kind      string // "tbf", "ingress"; of a filter "u32"
	Filter    bool
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
	lost, err = l.socket.Next(ctx, func(m notify.Message) {
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

// AwaitRunning waits until an interface of a namespace can send: a moment after the other
// end of its pair was set up the kernel notices that. It does not wait for an interface
// that is down. If the context ends, the error is its cause.
func AwaitRunning(ctx context.Context, ns *netns.Handle, index int) (err error) {
	l, err := Listen(ns, Changes{Links: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	c, err := Dial(ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for {
		link, err := c.LinkByIndex(index)
		if err != nil || link.Running() || !link.Up() {
			return err
		}
		if _, err := l.Next(ctx, func(Announcement) {}); err != nil {
			return err
		}
	}
}

// readAnnouncement reads an announcement. ok is false if it is about something else.
func readAnnouncement(m notify.Message) (h Announcement, ok bool, err error) {
	h.Port = m.Port
	switch m.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_SETLINK:
		return h.readLink(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, index, err := parseAddress(m.Body)
		h.Gone, h.Address = m.Type == unix.RTM_DELADDR, &HeardAddress{index, a.Prefix}
		return h, err == nil, err
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		h.Gone = m.Type == unix.RTM_DELROUTE
		h.Routes, err = parseRoute(nil, m.Body, 0)
		return h, err == nil && len(h.Routes) > 0, err
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		h.Gone = m.Type == unix.RTM_DELQDISC || m.Type == unix.RTM_DELTFILTER
		h.Queue = &HeardQueue{Filter: m.Type == unix.RTM_NEWTFILTER || m.Type == unix.RTM_DELTFILTER}
		err = h.Queue.parse(m.Body)
		return h, err == nil, err
	}
	return h, false, nil
}

// readLink reads an announcement about an interface. Those of a family are about the
// interface as a port of a bridge, or about its IPv6 settings: an interface that leaves a
// bridge is not deleted. For a port, the type is that of the request that changed it.
func (h Announcement) readLink(m notify.Message) (_ Announcement, ok bool, err error) {
	switch {
	case len(m.Body) == 0 || m.Body[0] == unix.AF_UNSPEC && m.Type != unix.RTM_SETLINK:
		l, err := parseLink(m.Body)
		h.Gone, h.Link = m.Type == unix.RTM_DELLINK, &l
		return h, err == nil, err
	case m.Body[0] == unix.AF_BRIDGE:
		h.BridgePort = &HeardPort{}
		err = h.BridgePort.parse(m.Body)
		return h, err == nil, err
	}
	return h, false, nil
}

// parse reads the body of an announcement of the family of bridges.
func (p *HeardPort) parse(body []byte) (err error) {
	if p.Interface, p.VLANs, err = parseVLANs(body); err != nil {
		return err
	}
	var settings []byte
	err = eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
		if typ == unix.IFLA_PROTINFO {
			settings = value
		}
	})
	if err != nil || settings == nil {
		return err
	}
	p.Mode = &PortMode{}
	return eachAttr(settings, p.Mode.parse)
}

// parse reads an attribute if it is one of the modes.
func (p *PortMode) parse(typ uint16, value []byte) {
	switch typ {
	case unix.IFLA_BRPORT_MODE:
		p.Hairpin = number(value) != 0
	case unix.IFLA_BRPORT_ISOLATED:
		p.Isolated = number(value) != 0
	}
}

// parse reads the body of an announcement of traffic control. Index 0 is that of a block
// of filters that several interfaces share.
func (q *HeardQueue) parse(body []byte) error {
	if len(body) < sizeofTcMsg {
		return errTruncated
	}
	if native.Uint32(body[4:]) != tcmIfindexMagicBlock {
		q.Interface = int(native.Uint32(body[4:]))
	}
	return eachAttr(body[sizeofTcMsg:], func(typ uint16, value []byte) {
		if typ == tcaKind {
			q.Kind = unix.ByteSliceToString(value)
		}
	})
}
