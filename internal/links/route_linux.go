package links

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Route is a route to a destination.
type Route struct {
	Dst netip.Prefix // length 0: the default route
	// Via and Src are the gateway and the source address. The zero Addr means
	// none.
	Via, Src netip.Addr
	Scope    uint8 // RT_SCOPE_*
	Table    int   // 0 is the main one
	Priority int
	Protocol uint8 // RTPROT_*, for a route to add: 0 is RTPROT_BOOT
	// Interface is the index of the outgoing interface; set only in routes that
	// were read.
	Interface int
	// MTU and AdvMSS apply to packets on this route; 0 leaves them to the kernel.
	MTU, AdvMSS int
}

func (r Route) String() string {
	s := r.Dst.String()
	if r.Via.IsValid() {
		s += " via " + r.Via.String()
	}
	return s
}

// AddRoute adds a route through an interface. With others, it coexists with a
// route to the same destination (IPv6: as a multipath route). Otherwise the
// error wraps EEXIST if there is one. AddRoute ignores the errors in fine.
func (r *Requests) AddRoute(index int, route Route, others bool, fine ...error) {
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_ACK)
	if !others {
		flags |= unix.NLM_F_EXCL
	}
	r.add(routeMessage(unix.RTM_NEWROUTE, flags, index, route), nil, "add route "+route.String(), fine...)
}

// DeleteRoute deletes a route. It ignores the errors in fine.
func (r *Requests) DeleteRoute(index int, route Route, fine ...error) {
	r.add(routeMessage(unix.RTM_DELROUTE, unix.NLM_F_ACK, index, route), nil, "delete route "+route.String(), fine...)
}

// InterfaceTo returns the index of the interface that the kernel uses for
// packets to an address. Without a route, the error is the kernel's.
func (c *Conn) InterfaceTo(to netip.Addr) (index int, err error) {
	index, _, err = c.routeTo(to)
	return index, err
}

// IsLocal reports whether an address is one of the namespace's own, as those of
// 127.0.0.0/8 are.
func (c *Conn) IsLocal(addr netip.Addr) (bool, error) {
	_, typ, err := c.routeTo(addr)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return false, nil // no route, or one that refuses packets
	}
	return typ == unix.RTN_LOCAL, err
}

// routeTo returns the interface and the type of the route to an address.
func (c *Conn) routeTo(to netip.Addr) (index int, typ byte, err error) {
	fixed := make([]byte, unix.SizeofRtMsg)
	fixed[0], fixed[1] = family(to), byte(to.BitLen())
	m := newMessage(unix.RTM_GETROUTE, 0, fixed)
	m.attr(unix.RTA_DST, to.AsSlice())
	err = c.execute(m, func(body []byte) error {
		if len(body) < unix.SizeofRtMsg {
			return errTruncated
		}
		typ = body[7]
		return eachAttr(body[unix.SizeofRtMsg:], func(typ uint16, value []byte) {
			if typ == unix.RTA_OIF {
				index = int(number(value))
			}
		})
	})
	return index, typ, err
}

// routeMessage is a request about a route. Its fixed part is a struct rtmsg
// (<linux/rtnetlink.h>).
func routeMessage(typ, flags uint16, index int, r Route) *message {
	table := cmp.Or(r.Table, unix.RT_TABLE_MAIN)
	fixed := make([]byte, unix.SizeofRtMsg)
	fixed[0] = family(r.Dst.Addr())
	fixed[1] = byte(r.Dst.Bits())
	fixed[6] = r.Scope
	if table < 256 {
		fixed[4] = byte(table)
	}
	if typ == unix.RTM_NEWROUTE {
		fixed[5] = cmp.Or(r.Protocol, unix.RTPROT_BOOT)
		fixed[7] = unix.RTN_UNICAST
	}
	m := newMessage(typ, flags, fixed)
	if r.Dst.Bits() > 0 {
		m.attr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice())
	}
	if r.Via.IsValid() {
		m.attr(unix.RTA_GATEWAY, r.Via.AsSlice())
	}
	if r.Src.IsValid() {
		m.attr(unix.RTA_PREFSRC, r.Src.AsSlice())
	}
	m.u32(unix.RTA_OIF, uint32(index))
	if r.Priority != 0 {
		m.u32(unix.RTA_PRIORITY, uint32(r.Priority))
	}
	if table >= 256 {
		m.u32(unix.RTA_TABLE, uint32(table))
	}
	if r.MTU != 0 || r.AdvMSS != 0 {
		m.nest(unix.RTA_METRICS, func() {
			if r.MTU != 0 {
				m.u32(unix.RTAX_MTU, uint32(r.MTU))
			}
			if r.AdvMSS != 0 {
				m.u32(unix.RTAX_ADVMSS, uint32(r.AdvMSS))
			}
		})
	}
	return m
}

// Routes returns the routes through an interface, or all if index is 0, of both
// families and all tables except the local one, which the kernel maintains. The
// error may wrap [ErrTorn].
func (c *Conn) Routes(index int) ([]Route, error) {
	only := func(m *message) {
		if index != 0 {
			m.u32(unix.RTA_OIF, uint32(index))
		}
	}
	all, err := listFamilies(c, unix.RTM_GETROUTE, unix.SizeofRtMsg, only, func(all []Route, body []byte) ([]Route, error) {
		return parseRoute(all, body, index)
	})
	if err != nil {
		err = fmt.Errorf("list the routes of interface %d: %w", index, err)
	}
	return all, err
}

// Destinations returns the destinations of the routes of all types, of both families and
// all tables except the local one. The error may wrap [ErrTorn].
func (c *Conn) Destinations() ([]netip.Prefix, error) {
	all, err := listFamilies(c, unix.RTM_GETROUTE, unix.SizeofRtMsg, nil, func(all []netip.Prefix, body []byte) ([]netip.Prefix, error) {
		if body[4] == unix.RT_TABLE_LOCAL { // body is a struct rtmsg at least
			return all, nil
		}
		dst := unspecified(body[0])
		err := eachAttr(body[unix.SizeofRtMsg:], func(typ uint16, value []byte) {
			if typ == unix.RTA_DST {
				dst, _ = netip.AddrFromSlice(value)
			}
		})
		return append(all, netip.PrefixFrom(dst, int(body[1]))), err
	})
	if err != nil {
		err = fmt.Errorf("list the destinations of routes: %w", err)
	}
	return all, err
}

// parseRoute reads the body of an RTM_NEWROUTE, and appends its routes. For a
// multipath route, the interface may be that of any path.
func parseRoute(all []Route, body []byte, index int) ([]Route, error) {
	if len(body) < unix.SizeofRtMsg {
		return all, errTruncated
	}
	r := Route{Scope: body[6], Table: int(body[4])}
	if r.Table == unix.RT_TABLE_LOCAL {
		return all, nil
	}
	dst := unspecified(body[0])
	var ways []byte
	err := eachAttr(body[unix.SizeofRtMsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.Via, _ = netip.AddrFromSlice(value)
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			r.Interface = int(number(value))
		case unix.RTA_PRIORITY:
			r.Priority = int(number(value))
		case unix.RTA_TABLE:
			r.Table = int(number(value))
		case unix.RTA_MULTIPATH:
			ways = value
		}
	})
	if err != nil {
		return all, err
	}
	r.Dst = netip.PrefixFrom(dst, int(body[1]))
	if all, err = appendWays(all, r, ways, index); err != nil {
		return all, err
	}
	if r.Interface != 0 && (r.Interface == index || index == 0) {
		all = append(all, r)
	}
	return all, nil
}

// appendWays reads a list of struct rtnexthop with attributes
// (<linux/rtnetlink.h>): the gateways and interfaces of a route.
func appendWays(all []Route, r Route, list []byte, index int) ([]Route, error) {
	for len(list) >= unix.SizeofRtNexthop {
		size := int(native.Uint16(list))
		if size < unix.SizeofRtNexthop || size > len(list) {
			return all, errTruncated
		}
		r.Via, r.Interface = netip.Addr{}, int(native.Uint32(list[4:]))
		err := eachAttr(list[unix.SizeofRtNexthop:size], func(typ uint16, value []byte) {
			if typ == unix.RTA_GATEWAY {
				r.Via, _ = netip.AddrFromSlice(value)
			}
		})
		if err != nil {
			return all, err
		}
		if index == 0 || r.Interface == index {
			all = append(all, r)
		}
		list = list[min(aligned(size), len(list)):]
	}
	return all, nil
}

func unspecified(family byte) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
