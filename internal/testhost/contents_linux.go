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

// Contents is a container's network according to the kernel or to a result.
type Contents struct {
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
	var said Contents
	for i, raw := range result.Raw() {
		unsaid := c.Link
		if unsaid.Name == "" {
			unsaid.Name = result.Networks[i].IfName
		}
		one := SaidContents(raw, unsaid)
		said.Links = append(said.Links, one.Links...)
		said.Routes = append(said.Routes, one.Routes...)
	}
	said.Routes = append(said.Routes, c.Routes...)
	said.sort()
	if got := h.KernelContents(path, said); !reflect.DeepEqual(got, said) {
		h.T.Errorf("in the container:\n%+v\nthe result says:\n%+v", got, said)
	}
}

// KernelContents reads the container's network. It omits the fields of a link
// that said lacks, so that the two are equal if they agree.
func (h *RealHost) KernelContents(path string, said Contents) Contents {
	h.T.Helper()
	var c Contents
	h.Inside(path, func() error {
		links, err := audit.Dump(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, l := range links {
			link, err := kernelLink(l, said)
			if err != nil {
				return err
			}
			if l.Attrs().Name != "lo" || slices.ContainsFunc(said.Links, func(s ContentLink) bool { return s.Name == "lo" }) {
				c.Links = append(c.Links, link)
			}
		}
		c.Routes, err = kernelRoutes()
		return err
	})
	c.sort()
	return c
}

func kernelLink(l netlink.Link, said Contents) (ContentLink, error) {
	a := l.Attrs()
	link := ContentLink{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU}
	if a.Flags&net.FlagLoopback != 0 {
		link.MAC = "00:00:00:00:00:00" // in the plugins' form; netlink omits it
	}
	for _, s := range said.Links {
		if s.Name == a.Name && s.MAC == "" {
			link.MAC = ""
		}
		if s.Name == a.Name && s.MTU == 0 {
			link.MTU = 0
		}
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

func kernelRoutes() ([]string, error) {
	var routes []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := audit.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.Protocol == unix.RTPROT_KERNEL {
				continue
			}
			routes = append(routes, routeText(r.Dst, r.Gw))
		}
	}
	return routes, nil
}

// SaidContents returns the container's network according to one network's
// result. Before 0.3.0 a result does not name the interface, and unsaid
// supplies it.
func SaidContents(result *types100.Result, unsaid ContentLink) Contents {
	var c Contents
	position := map[int]int{}
	for i, intf := range result.Interfaces {
		if intf.Sandbox == "" {
			continue
		}
		position[i] = len(c.Links)
		c.Links = append(c.Links, ContentLink{Name: intf.Name, MAC: intf.Mac, MTU: intf.Mtu})
	}
	if len(c.Links) == 0 {
		c.Links = []ContentLink{unsaid}
	}
	gateways := map[bool]net.IP{}
	for _, ip := range result.IPs {
		at := 0
		if ip.Interface != nil {
			at = position[*ip.Interface]
		}
		c.Links[at].Addrs = append(c.Links[at].Addrs, ip.Address.String())
		gateways[ip.Address.IP.To4() != nil] = ip.Gateway
	}
	for _, r := range result.Routes {
		gw := r.GW
		if gw == nil {
			gw = gateways[r.Dst.IP.To4() != nil]
		}
		c.Routes = append(c.Routes, routeText(&r.Dst, gw))
	}
	c.sort()
	return c
}

func routeText(dst *net.IPNet, gw net.IP) string {
	if gw == nil {
		return dst.String()
	}
	return dst.String() + " via " + gw.String()
}

func (c *Contents) sort() {
	slices.SortFunc(c.Links, func(a, b ContentLink) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range c.Links {
		slices.Sort(l.Addrs)
	}
	slices.Sort(c.Routes)
}
