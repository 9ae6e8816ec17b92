package links

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
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
func (c *Conn) AddRoute(index int, route Route, others bool, fine ...error) error {
	flags := unix.NLM_F_CREATE | unix.NLM_F_ACK
	if !others {
		flags |= unix.NLM_F_EXCL
	}
	return c.do(routeMessage(unix.RTM_NEWROUTE, flags, index, route), nil, "add route "+route.String(), fine...)
}

// DeleteRoute deletes a route. It ignores the errors in fine.
func (c *Conn) DeleteRoute(index int, route Route, fine ...error) error {
	return c.do(routeMessage(unix.RTM_DELROUTE, unix.NLM_F_ACK, index, route), nil, "delete route "+route.String(), fine...)
}

// InterfaceTo returns the index of the interface that the kernel uses for
// packets to an address, or 0 without a route.
func InterfaceTo(c *Conn, to netip.Addr) (index int, err error) {
	index, _, err = routeTo(c, to)
	return index, err
}

// IsLocal reports whether an address is one of the namespace's own, as those of
// 127.0.0.0/8 are.
func IsLocal(c *Conn, addr netip.Addr) (bool, error) {
	_, typ, err := routeTo(c, addr)
	return typ == unix.RTN_LOCAL, err
}

// routeTo returns the interface and the type of the route to an address. They are 0
// without a route, or if it refuses packets.
func routeTo(c *Conn, to netip.Addr) (index int, typ byte, err error) {
	fixed := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family(to), Dst_len: uint8(to.BitLen())}}
	err = c.execute(request(unix.RTM_GETROUTE, 0, fixed, data(unix.RTA_DST, to.AsSlice()...)), func(m message) {
		index, typ = m.int(unix.RTA_OIF), nl.DeserializeRtMsg(m.body).Type
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return 0, 0, nil
	}
	return index, typ, err
}

// routeMessage is a request about a route.
func routeMessage(typ, flags, index int, r Route) *nl.NetlinkRequest {
	fixed := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family(r.Dst.Addr()), Dst_len: uint8(r.Dst.Bits()), Scope: r.Scope}}
	if typ == unix.RTM_NEWROUTE {
		fixed.Protocol, fixed.Type = cmp.Or(r.Protocol, unix.RTPROT_BOOT), unix.RTN_UNICAST
	}
	m := request(typ, flags, fixed, u32(unix.RTA_OIF, uint32(index)), u32(unix.RTA_TABLE, uint32(cmp.Or(r.Table, unix.RT_TABLE_MAIN))))
	if r.Dst.Bits() > 0 {
		m.AddData(data(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()...))
	}
	if r.Via.IsValid() {
		m.AddData(data(unix.RTA_GATEWAY, r.Via.AsSlice()...))
	}
	if r.Src.IsValid() {
		m.AddData(data(unix.RTA_PREFSRC, r.Src.AsSlice()...))
	}
	if r.Priority != 0 {
		m.AddData(u32(unix.RTA_PRIORITY, uint32(r.Priority)))
	}
	var metrics []attribute
	if r.MTU != 0 {
		metrics = append(metrics, u32(unix.RTAX_MTU, uint32(r.MTU)))
	}
	if r.AdvMSS != 0 {
		metrics = append(metrics, u32(unix.RTAX_ADVMSS, uint32(r.AdvMSS)))
	}
	if len(metrics) > 0 {
		m.AddData(nest(unix.RTA_METRICS, metrics...))
	}
	return m
}

// Routes returns the routes through an interface, or all if index is 0, of both
// families and all tables except the local one, which the kernel maintains. The
// error may wrap [ErrTorn].
func (c *Conn) Routes(index int) ([]Route, error) {
	all, err := listFamilies(c, routeList(index), func(all []Route, m message) []Route { return parseRoute(all, m, index) })
	return all, saying(fmt.Sprintf("list the routes of interface %d", index), err)
}

// Destinations returns the destinations of the routes of all types, of both families and
// all tables except the local one. The error may wrap [ErrTorn].
func (c *Conn) Destinations() ([]netip.Prefix, error) {
	all, err := listFamilies(c, routeList(0), func(all []netip.Prefix, m message) []netip.Prefix {
		if nl.DeserializeRtMsg(m.body).Table != unix.RT_TABLE_LOCAL {
			all = append(all, destination(m))
		}
		return all
	})
	return all, saying("list the destinations of routes", err)
}

// routeList asks for the routes of a family, through one interface or all.
func routeList(index int) func(family byte) *nl.NetlinkRequest {
	return func(family byte) *nl.NetlinkRequest {
		m := request(unix.RTM_GETROUTE, unix.NLM_F_DUMP, &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		if index != 0 {
			m.AddData(u32(unix.RTA_OIF, uint32(index)))
		}
		return m
	}
}

// destination reads the destination of a route.
func destination(m message) netip.Prefix {
	fixed := nl.DeserializeRtMsg(m.body)
	dst := m.address(unix.RTA_DST)
	switch {
	case dst.IsValid():
	case fixed.Family == unix.AF_INET6:
		dst = netip.IPv6Unspecified()
	default:
		dst = netip.IPv4Unspecified()
	}
	return netip.PrefixFrom(dst, int(fixed.Dst_len))
}

// address reads an address. The zero Addr means none.
func (all attributes) address(typ uint16) netip.Addr {
	addr, _ := netip.AddrFromSlice(all.get(typ))
	return addr
}

// parseRoute reads an RTM_NEWROUTE, and appends its routes: one for each
// gateway of a multipath route (struct rtnexthop with attributes).
func parseRoute(all []Route, m message, index int) []Route {
	fixed := nl.DeserializeRtMsg(m.body)
	one := Route{
		Dst: destination(m), Via: m.address(unix.RTA_GATEWAY), Src: m.address(unix.RTA_PREFSRC),
		Scope: fixed.Scope, Table: cmp.Or(m.int(unix.RTA_TABLE), int(fixed.Table)), Priority: m.int(unix.RTA_PRIORITY), Interface: m.int(unix.RTA_OIF),
	}
	if one.Table == unix.RT_TABLE_LOCAL {
		return all
	}
	ways := []Route{one}
	for list := m.get(unix.RTA_MULTIPATH); len(list) >= unix.SizeofRtNexthop; {
		hop := nl.DeserializeRtNexthop(list)
		size := int(hop.RtNexthop.Len)
		if size < unix.SizeofRtNexthop || size > len(list) {
			*m.bad = errTruncated
			return all
		}
		one.Via, one.Interface = m.within(list[unix.SizeofRtNexthop:size]).address(unix.RTA_GATEWAY), int(hop.Ifindex)
		ways = append(ways, one)
		list = list[min((size+3)&^3, len(list)):]
	}
	for _, way := range ways {
		if way.Interface != 0 && (way.Interface == index || index == 0) {
			all = append(all, way)
		}
	}
	return all
}
