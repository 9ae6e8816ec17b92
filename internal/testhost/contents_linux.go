package testhost

import (
	"net"
	"reflect"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
)

// contents is a container's network according to the kernel or to a result.
type contents struct {
	Links  []ContentLink
	Routes []string // "destination via gateway", without the kernel's own
}

type ContentLink struct {
	Name, MAC string
	MTU       int // 0 if the result has none
	Addrs     []string
}

// WantAsSaid compares the container with the result.
func (h *RealHost) WantAsSaid(result *cni.Result, path string, c *Case) {
	h.T.Helper()
	said := contents{Routes: slices.Clone(c.Routes)}
	for i, raw := range result.Raw() {
		unsaid := c.Link
		if unsaid.Name == "" {
			unsaid.Name = result.Networks[i].IfName
		}
		said.add(raw, unsaid)
	}
	var got contents
	h.Inside(path, func() error { return got.read(said) })
	got.sort()
	if said.sort(); !reflect.DeepEqual(got, said) {
		h.T.Errorf("in the container:\n%+v\nthe result says:\n%+v", got, said)
	}
}

// read reads the network of the thread's namespace. It omits the fields of a link
// that said lacks, so that the two are equal if they agree.
func (c *contents) read(said contents) error {
	links, err := audit.Dump(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		i := slices.IndexFunc(said.Links, func(s ContentLink) bool { return s.Name == l.Attrs().Name })
		if l.Attrs().Name == "lo" && i < 0 {
			continue
		}
		link, err := kernelLink(l)
		if err != nil {
			return err
		}
		if i >= 0 && said.Links[i].MAC == "" {
			link.MAC = ""
		}
		if i >= 0 && said.Links[i].MTU == 0 {
			link.MTU = 0
		}
		c.Links = append(c.Links, link)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := audit.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL {
				c.Routes = append(c.Routes, routeText(r.Dst, r.Gw))
			}
		}
	}
	return nil
}

func kernelLink(l netlink.Link) (ContentLink, error) {
	a := l.Attrs()
	link := ContentLink{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU}
	if a.Flags&net.FlagLoopback != 0 {
		link.MAC = "00:00:00:00:00:00" // in the plugins' form; netlink omits it
	}
	if a.Flags&net.FlagUp == 0 {
		link.Name += " (down)"
	}
	addrs, err := audit.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
	for _, addr := range addrs {
		if !addr.IP.IsLinkLocalUnicast() {
			link.Addrs = append(link.Addrs, addr.IPNet.String())
		}
	}
	return link, err
}

// add adds what one network's result says. Before 0.3.0 a result does not name the
// interface, and unsaid supplies it.
func (c *contents) add(result *types100.Result, unsaid ContentLink) {
	var links []ContentLink
	position := map[int]int{}
	for i, intf := range result.Interfaces {
		if intf.Sandbox != "" {
			position[i] = len(links)
			links = append(links, ContentLink{Name: intf.Name, MAC: intf.Mac, MTU: intf.Mtu})
		}
	}
	if len(links) == 0 {
		links = []ContentLink{unsaid}
	}
	gateways := map[bool]net.IP{}
	for _, ip := range result.IPs {
		at := 0
		if ip.Interface != nil {
			at = position[*ip.Interface]
		}
		links[at].Addrs = append(links[at].Addrs, ip.Address.String())
		gateways[ip.Address.IP.To4() != nil] = ip.Gateway
	}
	for _, r := range result.Routes {
		gw := r.GW
		if gw == nil {
			gw = gateways[r.Dst.IP.To4() != nil]
		}
		c.Routes = append(c.Routes, routeText(&r.Dst, gw))
	}
	c.Links = append(c.Links, links...)
}

func routeText(dst *net.IPNet, gw net.IP) string {
	if gw == nil {
		return dst.String()
	}
	return dst.String() + " via " + gw.String()
}

func (c *contents) sort() {
	slices.SortFunc(c.Links, func(a, b ContentLink) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range c.Links {
		slices.Sort(l.Addrs)
	}
	slices.Sort(c.Routes)
}
