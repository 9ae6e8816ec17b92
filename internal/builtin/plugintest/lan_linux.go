package plugintest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/netns"
)

// LAN is an Ethernet segment that hosts are cabled to: a bridge in a namespace
// of its own, which has the addresses 10.1.0.99 and fd00::99.
type LAN struct {
	Machine *netns.Handle
	cables  int
}

// NewLAN makes a LAN without hosts.
func NewLAN(t testing.TB) *LAN {
	t.Helper()
	l := &LAN{}
	l.Machine, _ = NetNS(t)
	Inside(t, l.Machine, func(nl *netlink.Handle) error {
		a := netlink.NewLinkAttrs()
		a.Name = "switch"
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: a})
	})
	SetUp(t, l.Machine, "switch")
	AddAddress(t, l.Machine, "switch", "10.1.0.99/24")
	AddAddress(t, l.Machine, "switch", "fd00::99/64")
	return l
}

// Cable gives a host an interface on the LAN. It is down.
func (l *LAN) Cable(t testing.TB, host *netns.Handle, name string) {
	t.Helper()
	l.cables++
	port := fmt.Sprint("port", l.cables)
	Inside(t, l.Machine, func(nl *netlink.Handle) error {
		br, err := nl.LinkByName("switch")
		if err != nil {
			return err
		}
		a := netlink.NewLinkAttrs()
		a.Name, a.MasterIndex = port, br.Attrs().Index
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name, PeerNamespace: netlink.NsFd(host.File().Fd())})
	})
	SetUp(t, l.Machine, port)
}

// Bridge gives a host a bridge whose uplink is on the LAN, as far as IPv6 is
// concerned: a tunnel to the LAN's own bridge. A cable, which is a veth, would
// look like a container's.
func (l *LAN) Bridge(t testing.TB, host *netns.Handle, name string) {
	t.Helper()
	cable := name + "-cable"
	l.Cable(t, host, cable)
	SetUp(t, host, cable)
	machine, own := net.IPv4(10, 1, 0, 99), net.IPv4(10, 1, 0, byte(100+l.cables))
	AddAddress(t, host, cable, own.String()+"/24")
	tunnel := func(ns *netns.Handle, name, master string, remote net.IP) {
		Inside(t, ns, func(nl *netlink.Handle) error {
			br, err := nl.LinkByName(master)
			if err != nil {
				return err
			}
			a := netlink.NewLinkAttrs()
			a.Name, a.MasterIndex = name, br.Attrs().Index
			return nl.LinkAdd(&netlink.Vxlan{LinkAttrs: a, VxlanId: l.cables, Group: remote, Port: 4789, Learning: true})
		})
		SetUp(t, ns, name)
	}
	Inside(t, host, func(nl *netlink.Handle) error {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: a})
	})
	SetUp(t, host, name)
	tunnel(host, name+"-up", name, machine)
	tunnel(l.Machine, fmt.Sprint("tunnel", l.cables), "switch", own)
}

// AddAddress adds an address to an interface. An IPv6 address gets no duplicate
// detection.
func AddAddress(t testing.TB, ns *netns.Handle, name, address string) {
	t.Helper()
	Change(t, ns, name, func(nl *netlink.Handle, link netlink.Link) error {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = noDetection
		}
		return nl.AddrAdd(link, a)
	})
}

// AddRoute adds a route.
func AddRoute(t testing.TB, ns *netns.Handle, to netip.Prefix, via netip.Addr) {
	t.Helper()
	Inside(t, ns, func(nl *netlink.Handle) error {
		dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
		return nl.RouteAdd(&netlink.Route{Dst: dst, Gw: via.AsSlice()})
	})
}

// NoDetection turns off IPv6 duplicate address detection for the interfaces
// that a namespace gets from now on, as an administrator can.
func NoDetection(t testing.TB, ns *netns.Handle) {
	t.Helper()
	err := ns.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv6/conf/all/accept_dad", []byte("0"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// noDetection is IFA_F_NODAD, <linux/if_addr.h>.
const noDetection = 2

// connectTime bounds a connection: a first SYN that is lost is repeated after one
// second, and then after two more.
const connectTime = 10 * time.Second

// Connect listens on an address of the namespace to, opens a TCP connection to
// it, and returns the time that took.
func Connect(t testing.TB, from, to *netns.Handle, addr netip.Addr) time.Duration {
	t.Helper()
	var listener net.Listener
	err := to.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	begin := time.Now()
	var conn net.Conn
	err = from.Do(func() (err error) {
		begin = time.Now()
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), connectTime)
		return err
	})
	took := time.Since(begin)
	if err != nil {
		t.Fatalf("after %s: %v", took, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	return took
}
