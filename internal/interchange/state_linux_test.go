package interchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// state lists every setting of the host and the containers that a plugin could
// have changed, as sorted lines. They are comparable with those of another
// host: random names and addresses, and the test's paths, are replaced. It
// contains more than an audit, which lists objects instead of settings.
func (h *host) state(n *normaliser, containers ...*container) audit.Lines {
	h.t.Helper()
	var lines audit.Lines
	h.do(func() error {
		found, err := audit.Snapshot(context.Background(), audit.Options{WithoutProcess: true, Complete: true})
		if err != nil {
			return err
		}
		// Rules appear as in an audit. The other lines have more details here.
		for _, l := range found {
			if tool, _, _ := strings.Cut(l, " "); audit.IsRule(l) || tool == "rule" || tool == "neigh" {
				lines = append(lines, l)
			}
		}
		more, err := namespaceState(n, "host")
		lines = append(lines, more...)
		return err
	})
	lines = append(lines, expect.Value(fileLines(h.path("state")))(h.t)...)
	for _, c := range containers {
		c.do(h, func() error {
			more, err := namespaceState(n, c.id)
			for _, l := range more {
				lines = append(lines, c.id+": "+l)
			}
			return err
		})
	}
	for i, l := range lines {
		lines[i] = n.text(l)
	}
	slices.Sort(lines)
	return lines
}

// namespaceState reads the calling thread's namespace. It adds the names and
// addresses that it finds to n.
func namespaceState(n *normaliser, where string) ([]string, error) {
	links, err := audit.Dump(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		n.link(where, l)
	}
	vlans, err := audit.Dump(func() ([]string, error) { return bridgeVLANs(names) })
	if err != nil {
		return nil, err
	}
	lines := append(vlans, routeLines(names)...)
	for _, l := range links {
		lines = append(lines, linkLine(l, names))
		more, err := linkState(l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
		lines = append(lines, more...)
	}
	set, err := sysctls(slices.Collect(maps.Values(names)))
	for _, l := range links {
		if l.Attrs().MasterIndex != 0 {
			// A bridge port passes its packets to the bridge, so accepting
			// router advertisements has no effect on it. The reference plugins
			// disable it.
			set = slices.DeleteFunc(set, func(s string) bool { return strings.HasPrefix(s, "sysctl net/ipv6/conf/"+l.Attrs().Name+"/accept_ra ") })
		}
	}
	return append(lines, set...), err
}

// linkFlags are the configured flags of a link, as opposed to states.
const linkFlags = unix.IFF_UP | unix.IFF_BROADCAST | unix.IFF_MULTICAST | unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_NOARP | unix.IFF_POINTOPOINT

func linkLine(l netlink.Link, names map[int]string) string {
	a := l.Attrs()
	line := fmt.Sprintf("link %s kind %s flags %#x mtu %d txqlen %d group %d alias %q mac %s master %q promisc %d allmulti %d",
		a.Name, l.Type(), a.RawFlags&linkFlags, a.MTU, a.TxQLen, a.Group, a.Alias, a.HardwareAddr, names[a.MasterIndex], a.Promisc, a.Allmulti)
	switch l := l.(type) {
	case *netlink.Veth:
		// The reference plugins set the queue length of the host's end, which
		// has no queue, to 0. Anybody who adds a queue later runs into that.
		// Ours leave it alone.
		if strings.HasPrefix(a.Name, "veth") {
			line = strings.Replace(line, fmt.Sprintf(" txqlen %d ", a.TxQLen), " txqlen any ", 1)
		}
	case *netlink.Bridge:
		// Its address is one of its ports', unless it was set.
		line = strings.Replace(line, "mac "+a.HardwareAddr.String(), "mac any", 1)
		// Ours mark the bridges that they make.
		line = strings.Replace(line, ` alias "embedcni" `, ` alias "" `, 1)
		line += fmt.Sprintf(" snooping %v ageing %v hello %v vlans %v pvid %v mask %v",
			deref(l.MulticastSnooping), deref(l.AgeingTime), deref(l.HelloTime), deref(l.VlanFiltering), deref(l.VlanDefaultPVID), deref(l.GroupFwdMask))
	case *netlink.Macvlan:
		line += fmt.Sprintf(" mode %d queue %d", l.Mode, l.BCQueueLen)
	}
	return line
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// linkState returns a link's options as a bridge port, its addresses and its
// queueing disciplines.
func linkState(l netlink.Link) ([]string, error) {
	name := l.Attrs().Name
	var lines []string
	if l.Attrs().MasterIndex != 0 {
		port, err := netlink.LinkGetProtinfo(l)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("port %s %+v", name, port))
	}
	addrs, err := audit.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() {
			continue // the kernel adds it at an unknown time
		}
		lines = append(lines, fmt.Sprintf("addr %s %s label %q flags %#x scope %d peer %v broadcast %v valid %d preferred %d",
			name, a.IPNet, a.Label, a.Flags&^addressDetection, a.Scope, a.Peer, a.Broadcast, a.ValidLft, a.PreferedLft))
	}
	queues, err := queueState(l)
	return append(lines, queues...), err
}

// addressDetection are the flags of duplicate address detection. In-process
// plugins disable it with a flag of the address, and the reference plugins with
// a sysctl.
const addressDetection = unix.IFA_F_NODAD | unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC | unix.IFA_F_DADFAILED

func queueState(l netlink.Link) ([]string, error) {
	var lines []string
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return nil, err
	}
	for _, q := range qdiscs {
		if q.Type() == "noqueue" {
			continue
		}
		q.Attrs().LinkIndex = 0
		q.Attrs().Statistics = nil
		// The references are the interface's queues. The reference plugins let
		// the kernel make one for each possible CPU and use one of them. Ours
		// request that one.
		line := fmt.Sprintf("qdisc %s %s %+v", l.Attrs().Name, q.Type(), q)
		lines = append(lines, strings.Replace(line, fmt.Sprintf("Refcnt: %d}", q.Attrs().Refcnt), "Refcnt: any}", 1))
		classes, err := netlink.ClassList(l, q.Attrs().Handle)
		if err != nil {
			return nil, err
		}
		for _, c := range classes {
			lines = append(lines, fmt.Sprintf("class %s %s %v", l.Attrs().Name, c.Type(), c.Attrs()))
		}
		filters, err := netlink.FilterList(l, q.Attrs().Handle)
		if err != nil {
			return nil, err
		}
		for _, f := range filters {
			lines = append(lines, fmt.Sprintf("filter %s %s", l.Attrs().Name, filterText(f)))
		}
	}
	return lines, nil
}

// filterText omits the links' indexes, which differ between hosts.
func filterText(f netlink.Filter) string {
	text := fmt.Sprintf("%s priority %d protocol %#x", f.Type(), f.Attrs().Priority, f.Attrs().Protocol)
	u, ok := f.(*netlink.U32)
	if !ok {
		return text
	}
	for _, action := range u.Actions {
		if m, ok := action.(*netlink.MirredAction); ok {
			text += fmt.Sprintf(" %s %s", m.MirredAction, m.Action)
		}
		text += " " + action.Type()
	}
	return text + fmt.Sprintf(" class %d", u.ClassId)
}

func bridgeVLANs(names map[int]string) ([]string, error) {
	ports, err := netlink.BridgeVlanList()
	if err != nil {
		return nil, err
	}
	var lines []string
	for index, vlans := range ports {
		for _, v := range vlans {
			lines = append(lines, fmt.Sprintf("vlan %s %+v", names[int(index)], *v))
		}
	}
	return lines, nil
}

// routeLines returns all routes except those that the kernel adds for an
// address or a link, at an unknown time.
func routeLines(names map[int]string) []string {
	var lines []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		routes, err := audit.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, all, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			lines = append(lines, "routes: "+err.Error())
		}
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_LOCAL || family == netlink.FAMILY_V6 && r.Dst != nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast()) {
				continue
			}
			lines = append(lines, fmt.Sprintf("route %v via %v dev %s src %v table %d protocol %s scope %d metric %d type %d onlink %v mtu %d advmss %d",
				r.Dst, r.Gw, names[r.LinkIndex], r.Src, r.Table, r.Protocol, r.Scope, r.Priority, r.Type, r.Flags&unix.RTNH_F_ONLINK != 0, r.MTU, r.AdvMSS))
		}
	}
	return lines
}

// sysctls reads the existing settings that affect routing. accept_dad is not
// among them, see addressDetection.
func sysctls(links []string) ([]string, error) {
	names := []string{"ipv4/ip_forward", "ipv4/ip_nonlocal_bind", "core/somaxconn", "bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"}
	for _, link := range append(links, "all", "default") {
		for _, v4 := range []string{"forwarding", "arp_accept", "arp_announce", "arp_filter", "arp_ignore", "arp_notify",
			"proxy_arp", "route_localnet", "rp_filter", "accept_redirects", "send_redirects"} {
			names = append(names, "ipv4/conf/"+link+"/"+v4)
		}
		for _, v6 := range []string{"forwarding", "disable_ipv6", "accept_ra", "autoconf", "enhanced_dad", "hop_limit", "keep_addr_on_down", "proxy_ndp"} {
			names = append(names, "ipv6/conf/"+link+"/"+v6)
		}
	}
	var lines []string
	for _, name := range names {
		value, err := os.ReadFile("/proc/sys/net/" + name)
		if os.IsNotExist(err) {
			continue // a kernel or a link without it
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, "sysctl net/"+name+" = "+strings.TrimSpace(string(value)))
	}
	return lines, nil
}

// fileLines returns the files below a directory with their contents.
func fileLines(dir string) ([]string, error) {
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if os.IsNotExist(err) {
				return nil // a directory that no plugin has needed
			}
			lines = append(lines, "dir "+path)
			return err
		}
		content, err := os.ReadFile(path)
		info, statErr := d.Info()
		if err := errors.Join(err, statErr); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("file %s mode %v content %q", path, info.Mode(), content))
		return nil
	})
	return lines, err
}
