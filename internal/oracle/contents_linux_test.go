package oracle

import (
	"cmp"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// contents is a container's network according to the kernel or to a result.
type contents struct {
	links map[string]link
	lines []string // "eth0 10.1.0.2/24", "0.0.0.0/0 via 10.1.0.1": addresses and routes, without the kernel's own
}

// link has what a result says of an interface; a field that it does not say is zero.
type link struct {
	mac string
	mtu int
}

// wantAsSaid compares the container with the result.
func (h *matrixHost) wantAsSaid(result *cni.Result, path string, c *testhost.Case) {
	h.T.Helper()
	said, got := contents{map[string]link{}, slices.Clone(c.Routes)}, contents{links: map[string]link{}}
	for i, raw := range result.Raw() {
		ifName := result.Networks[i].IfName
		if c.Name == "loopback" && len(raw.Interfaces) == 0 {
			// The plugin prints a result of 0.3.0 and labels it as 0.1.0 or 0.2.0, in
			// which it is empty.
			ifName, said.lines = "lo", append(said.lines, "lo 127.0.0.1/8", "lo ::1/128")
		}
		said.add(raw, ifName)
	}
	h.Inside(path, func() error { return got.read(said.links) })
	slices.Sort(said.lines)
	slices.Sort(got.lines)
	expect.Same(h.T, "in the container, and in the result", got, said)
}

// read reads the network of the thread's namespace. It omits what said lacks of a link,
// so that the two are equal if they agree.
func (c *contents) read(said map[string]link) error {
	links, err := audit.Dump(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		says, ok := said[a.Name]
		if a.Name == "lo" && !ok {
			continue
		}
		name, now := a.Name, link{a.HardwareAddr.String(), a.MTU}
		if a.Flags&net.FlagLoopback != 0 {
			now.mac = "00:00:00:00:00:00" // in the plugins' form; netlink omits it
		}
		if ok && says.mac == "" {
			now.mac = ""
		}
		if ok && says.mtu == 0 {
			now.mtu = 0
		}
		if a.Flags&net.FlagUp == 0 {
			name += " (down)"
		}
		c.links[name] = now
		addrs, err := audit.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if !addr.IP.IsLinkLocalUnicast() {
				c.lines = append(c.lines, a.Name+" "+addr.IPNet.String())
			}
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := audit.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL {
				c.route(r.Dst, r.Gw)
			}
		}
	}
	return nil
}

// add adds what one network's result says. Before 0.3.0 a result does not name the
// interface, and ifName supplies it.
func (c *contents) add(result *types100.Result, ifName string) {
	first, names := "", map[int]string{}
	for i, intf := range result.Interfaces {
		if intf.Sandbox != "" {
			first, names[i] = cmp.Or(first, intf.Name), intf.Name
			c.links[intf.Name] = link{intf.Mac, intf.Mtu}
		}
	}
	if first == "" {
		first, c.links[ifName] = ifName, link{}
	}
	gateways := map[bool]net.IP{}
	for _, ip := range result.IPs {
		name := first
		if ip.Interface != nil {
			name = cmp.Or(names[*ip.Interface], first)
		}
		c.lines = append(c.lines, name+" "+ip.Address.String())
		gateways[ip.Address.IP.To4() != nil] = ip.Gateway
	}
	for _, r := range result.Routes {
		gw := r.GW
		if gw == nil {
			gw = gateways[r.Dst.IP.To4() != nil]
		}
		c.route(&r.Dst, gw)
	}
}

func (c *contents) route(dst *net.IPNet, gw net.IP) {
	text := dst.String()
	if gw != nil {
		text += " via " + gw.String()
	}
	c.lines = append(c.lines, text)
}
