package links

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// Losses tell that the interfaces of a namespace may have lost something: one is deleted,
// set down, renamed or leaves its bridge, a port loses a mode or a VLAN; an address, a queue
// or a route is deleted. An addition is no loss. One goroutine at a time may use them.
type Losses struct {
	socket *Socket
	ns     *netns.Handle
	ports  map[int]port // all interfaces by index, as last announced
}

// port is an interface, and what matters of it as the port of a bridge.
type port struct {
	Link
	vlans VLANs
}

// WatchLosses begins to watch for losses: with links of addresses and queues, with routes
// of routes, and always of interfaces. Buffer is the size of the kernel's buffer for what was
// not received yet; 0 leaves it to the system. The caller closes the Losses, and ns after them.
func WatchLosses(ns *netns.Handle, links, routes bool, buffer int) (*Losses, error) {
	mask := groups(unix.RTNLGRP_LINK)
	if links {
		mask |= groups(unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_TC)
	}
	if routes {
		mask |= groups(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	}
	s, err := Subscribe(ns, unix.NETLINK_ROUTE, mask, buffer)
	if err != nil {
		return nil, err
	}
	l := &Losses{socket: s, ns: ns}
	if err := l.list(); err != nil {
		return nil, joined.Errors(err, s.Close())
	}
	return l, nil
}

// Close ends the watch.
func (l *Losses) Close() error { return l.socket.Close() }

// list reads the state of all interfaces.
func (l *Losses) list() (err error) {
	c, err := Dial(l.ns)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, c.Close()) }()
	found, err := c.Links()
	if err != nil {
		return err
	}
	vlans, err := c.PortVLANs()
	if err != nil {
		return err
	}
	l.ports = make(map[int]port, len(found))
	for _, link := range found {
		l.ports[link.Index] = port{link, vlans[link.Index]}
	}
	return nil
}

// Next waits for announcements of the kernel, and reports whether something may be lost, and
// whether there is a new interface. If the context ends, the error is its cause.
func (l *Losses) Next(ctx context.Context) (lost, added bool, err error) {
	illegible := false
	missed, err := l.socket.Next(ctx, func(m Message) {
		gone, fresh, err := l.take(m)
		lost, added, illegible = lost || gone, added || fresh, illegible || err != nil
	})
	if (missed || illegible) && err == nil {
		lost, err = true, l.list()
	}
	return lost, added, err
}

// take takes an announcement in. With an error it cannot be read.
func (l *Losses) take(m Message) (lost, added bool, err error) {
	got := parse(m.Header.Type, m.Data)
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_SETLINK:
		lost, added = l.takeLink(m.Header.Type, got)
	case unix.RTM_DELADDR:
		lost = true
	case unix.RTM_DELROUTE:
		lost = len(parseRoute(nil, got, 0)) > 0 // none is one that the kernel maintains
	case unix.RTM_DELQDISC: // of what plugins make: the queue that the kernel gives to a new interface is replaced
		kind := got.str(nl.TCA_KIND)
		lost = kind == "tbf" || kind == "ingress"
	case unix.RTM_DELTFILTER:
		lost = got.str(nl.TCA_KIND) == "u32"
	default:
		return false, false, nil
	}
	return lost, added, *got.bad
}

// takeLink takes in an announcement about an interface. Those of a family are about the
// interface as a port of a bridge, or about its IPv6 settings: an interface that leaves a
// bridge is not deleted. For a port, the type is that of the request that changed it.
func (l *Losses) takeLink(typ uint16, m message) (lost, added bool) {
	index := int(nl.DeserializeIfInfomsg(m.body).Index)
	before, known := l.ports[index]
	now := before
	switch family := m.body[0]; {
	case family == unix.AF_UNSPEC && typ == unix.RTM_DELLINK:
		delete(l.ports, index)
		return true, false
	case family == unix.AF_UNSPEC && typ == unix.RTM_NEWLINK:
		if now.Link = parseLink(m); now.Port.Master != before.Port.Master {
			now.vlans = nil
		}
	case family == unix.AF_BRIDGE && known && before.Port.Master != 0: // else it has left the bridge, or is the bridge itself
		p := parsePort(m)
		if now.vlans = p.VLANs; p.Mode != nil {
			now.Port.PortMode = *p.Mode
		}
	default:
		return false, false
	}
	l.ports[index] = now
	return known && l.hasLost(before, now), !known
}

// hasLost reports whether an interface has lost something since before.
func (l *Losses) hasLost(before, now port) bool {
	switch was, is := before.Port, now.Port; {
	case before.Name != now.Name, before.Up() && !now.Up():
		return true
	case was.Master == 0:
		return false
	case was.Master != is.Master, was.Hairpin && !is.Hairpin, was.Isolated && !is.Isolated:
		return true
	}
	return hasLostVLAN(before.vlans, now.vlans, l.ports[now.Port.Master].DefaultVLAN)
}

// hasLostVLAN reports whether a port has lost a VLAN that a plugin may have given to it.
// The loss of the VLAN that the bridge gives to new ports does not count, since an ADD for
// other VLANs takes it away.
func hasLostVLAN(before, now VLANs, standard uint16) bool {
	for _, r := range before {
		for id := int(r.First); id <= int(r.Last); id++ {
			v, ok := now.Find(uint16(id))
			if uint16(id) != standard && (!ok || r.Access && !v.Access) {
				return true
			}
		}
	}
	return false
}
