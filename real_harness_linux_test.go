package cni_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/netns"
)

// realHost is a host for the reference plugins, of which several may be in use
// at once: its audits leave out what is the process's, such as the pins, the
// processes and the descriptors of the others.
type realHost struct{ *host }

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	h := &realHost{newHost(t)}
	if err := noAddressDetection(); err != nil {
		t.Fatal(err)
	}
	return h
}

// noAddressDetection spares the namespace's interfaces the detection of
// duplicate IPv6 addresses, for which bridge and ptp wait up to two seconds.
func noAddressDetection() error {
	for _, which := range []string{"all", "default"} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", which, "accept_dad")
		if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (h *realHost) container(name string) string {
	h.t.Helper()
	path := h.host.container(name)
	h.inside(path, noAddressDetection)
	return path
}

// inside runs fn in the namespace at path.
func (h *realHost) inside(path string, fn func() error) {
	h.t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := errors.Join(ns.Do(fn), ns.Close()); err != nil {
		h.t.Fatal(err)
	}
}

// real is a Runtime with the reference plugins.
func (h *realHost) real(opts ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	return h.runtime(append([]cni.Opt{cni.WithPluginDir([]string{referencePlugins(h.t)})}, opts...)...)
}

// audit is what exists on this host, without what is the whole process's, and
// without the pins of namespaces, which are the test's own.
func (h *realHost) audit() audit.Lines {
	h.t.Helper()
	lines := h.host.audit()
	for i, l := range lines {
		// Which address host-local gave out last is the network's, and changes.
		lines[i] = lastReserved.ReplaceAllString(l, "$1 host-local")
	}
	return lines.Without(func(line string) bool {
		what, _, _ := strings.Cut(line, " ")
		switch what {
		case "missing":
			h.t.Fatalf("the audit is blind: %s: install iptables and nftables", line)
		case "process", "fd", "mount", "netns":
			return true
		}
		return false
	})
}

var lastReserved = regexp.MustCompile(`(/last_reserved_ip\.\d+) sha256:\w+ host-local$`)

// left is what there is now and was not before, and what is gone since, but for
// what plugins keep for the network or the host.
func (h *realHost) left(before audit.Lines) (left, gone audit.Lines) {
	h.t.Helper()
	left, gone = audit.Diff(before, h.audit())
	own := h.path("state", "embedcni") // locks and marks are the host's
	return left.Without(audit.Shared).Without(func(l string) bool { return strings.Contains(l, own) }), gone
}

func (h *realHost) wantClean(before audit.Lines) {
	h.t.Helper()
	if left, gone := h.left(before); len(left)+len(gone) > 0 {
		h.t.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
}

// wantProcessAsBefore compares, when the test and its subtests are over, what
// the audits of single hosts leave out: processes, descriptors and mounts.
func wantProcessAsBefore(t *testing.T) {
	t.Helper()
	snapshot := func() audit.Lines {
		lines, err := audit.Snapshot(context.Background(), audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return lines.Without(func(line string) bool {
			what, _, _ := strings.Cut(line, " ")
			return what != "process" && what != "fd" && what != "mount"
		})
	}
	before := snapshot()
	t.Cleanup(func() {
		// A runtime keeps sockets to the packet filters for a moment, and one of
		// an earlier test may have been there before.
		added, _ := audit.Diff(before, snapshot())
		for end := time.Now().Add(patience); len(added) > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			added, _ = audit.Diff(before, snapshot())
		}
		if len(added) > 0 {
			t.Errorf("the process has, and had not:\n%s", strings.Join(added, "\n"))
		}
	})
}

// vethPair makes two ends that are cables of the host, both down.
func (h *realHost) vethPair(name, peer string) {
	h.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *realHost) linkUp(names ...string) {
	h.t.Helper()
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if err != nil {
			h.t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			h.t.Fatal(err)
		}
	}
}

// contents is a container's network as the kernel has it, or as a result says.
type contents struct {
	Links  []contentLink
	Routes []string // "destination via gateway"; those of the kernel's own are left out
}

type contentLink struct {
	Name, MAC string
	MTU       int // 0 if the result does not say
	Addrs     []string
}

// kernelContents reads the container's network. What a result does not say of
// a link is left out of the link, so that the two are equal if they agree.
func (h *realHost) kernelContents(path string, said contents) contents {
	h.t.Helper()
	var c contents
	h.inside(path, func() error {
		links, err := audit.Dump(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, l := range links {
			link, err := kernelLink(l, said)
			if err != nil {
				return err
			}
			if l.Attrs().Name != "lo" || slices.ContainsFunc(said.Links, func(s contentLink) bool { return s.Name == "lo" }) {
				c.Links = append(c.Links, link)
			}
		}
		c.Routes, err = kernelRoutes()
		return err
	})
	c.sort()
	return c
}

func kernelLink(l netlink.Link, said contents) (contentLink, error) {
	a := l.Attrs()
	link := contentLink{Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU}
	if a.Flags&net.FlagLoopback != 0 {
		link.MAC = "00:00:00:00:00:00" // as plugins write it; netlink leaves it out
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

// saidContents is the container's network according to one network's result.
// Before 0.3.0 a result does not name the interface: then it is unsaid.
func saidContents(result *types100.Result, unsaid contentLink) contents {
	var c contents
	position := map[int]int{}
	for i, intf := range result.Interfaces {
		if intf.Sandbox == "" {
			continue
		}
		position[i] = len(c.Links)
		c.Links = append(c.Links, contentLink{Name: intf.Name, MAC: intf.Mac, MTU: intf.Mtu})
	}
	if len(c.Links) == 0 {
		c.Links = []contentLink{unsaid}
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

func (c *contents) sort() {
	slices.SortFunc(c.Links, func(a, b contentLink) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range c.Links {
		slices.Sort(l.Addrs)
	}
	slices.Sort(c.Routes)
}
