package audit

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (v view) routes() (lines []string, err error) {
	for _, fam := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		more, err := listed(func() ([]netlink.Route, error) {
			all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
			return netlink.RouteListFiltered(fam, all, netlink.RT_FILTER_TABLE)
		}, v.route)()
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// implied reports whether a route is redundant or temporary. The kernel adds
// routes of the local table and to link-local and multicast destinations when a
// link is up or an address has proved unique. Routes from router advertisements
// expire.
func implied(r netlink.Route) bool {
	switch r.Protocol {
	case unix.RTPROT_RA, unix.RTPROT_REDIRECT:
		return true
	case unix.RTPROT_KERNEL:
		local := r.Table == unix.RT_TABLE_LOCAL
		return local || r.Dst.IP.IsLinkLocalUnicast() && r.Dst.IP.To4() == nil || r.Dst.IP.IsMulticast()
	}
	// Older kernels mark a link's multicast route with protocol boot.
	return r.Protocol == unix.RTPROT_BOOT && r.Table == unix.RT_TABLE_LOCAL && r.Dst.IP.IsMulticast()
}

// route describes a route. Netlink gives a default route the destination 0.0.0.0/0 or ::/0.
func (v view) route(r netlink.Route) string {
	if implied(r) {
		return ""
	}
	words := []string{"route", routeType(r.Type), r.Dst.String()}
	words = append(words, v.hop(r.Gw, r.Via, r.LinkIndex, r.Flags)...)
	for _, hop := range r.MultiPath {
		words = append(words, "nexthop")
		words = append(words, v.hop(hop.Gw, hop.Via, hop.LinkIndex, hop.Flags)...)
	}
	words = append(words, "proto "+r.Protocol.String())
	if r.Dst.IP.To4() != nil {
		words = append(words, "scope "+r.Scope.String())
	}
	words = append(words, word("src", r.Src))
	if r.Priority != 0 {
		words = append(words, fmt.Sprintf("metric %d", r.Priority))
	}
	if r.Table != unix.RT_TABLE_MAIN {
		words = append(words, fmt.Sprintf("table %d", r.Table))
	}
	if r.MTU != 0 {
		words = append(words, fmt.Sprintf("mtu %d", r.MTU))
	}
	return line(words...)
}

// hop describes a next hop. Of the flags only onlink is configuration. The
// others are states.
func (v view) hop(gw net.IP, via netlink.Destination, index, flags int) []string {
	words := []string{word("via", gw)}
	if via != nil {
		words = append(words, "via "+via.String())
	}
	words = append(words, word("dev", v.dev(index)))
	if flags&unix.RTNH_F_ONLINK != 0 {
		words = append(words, "onlink")
	}
	return words
}

// routeType returns the type's name, or nothing for a unicast route.
func routeType(t int) string {
	names := map[int]string{
		unix.RTN_UNICAST: "", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
		unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
		unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	}
	if name, ok := names[t]; ok {
		return name
	}
	return fmt.Sprintf("type-%d", t)
}
