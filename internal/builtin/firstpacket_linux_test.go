package builtin_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// firstPacketBound limits a first connection. It takes a fraction of a
// millisecond. Waiting for duplicate detection, or for the retransmission of a
// lost packet, takes 1 s or more.
const firstPacketBound = 800 * time.Millisecond

// site is a host on a LAN with two containers that have not communicated yet.
type site struct {
	lan, host *netns.Handle
	container [2]*netns.Handle
	addr      [2][2]netip.Addr // by container, then IPv4 and IPv6
	gateway   [2]netip.Addr
}

const routedIPAM = `"ipam": {"type": "host-local", "dataDir": "DIR", "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]`

// routed are networks whose containers the host routes to.
var routed = map[string]string{
	"ptp":    `"type": "ptp", ` + routedIPAM + `}`,
	"bridge": `"type": "bridge", "isGateway": true, ` + routedIPAM + `}`,
}

// newSite makes a host, with a new bridge if the network has one.
func newSite(t *testing.T, typ string, set ...string) *site {
	t.Helper()
	lan := plugintest.NewLAN(t)
	s := &site{lan: lan.Machine}
	s.host, _ = plugintest.NetNS(t)
	configureDefaults(t, s.host, set)
	lan.Cable(t, s.host, "lan0")
	nettest.SetUp(t, s.host, "lan0")
	for i, a := range []string{"10.1.0.1/24", "fd00::1/64"} {
		nettest.AddAddress(t, s.host, "lan0", a)
		nettest.Shell(t, s.lan, []string{"ip route add 10.2.0.0/24 via 10.1.0.1", "ip route add fd00:2::/64 via fd00::1"}[i])
	}
	awaitFound(t, s.host, "lan0", "fd00::1/64")
	side, dir := plugintest.Ours(s.host, builtin.New()), t.TempDir()
	for i, id := range []string{"c1", "c2"} {
		c := plugintest.Call{Type: typ, ID: id, IfName: "eth0"}
		s.container[i], c.NetNS = plugintest.NetNS(t)
		configureDefaults(t, s.container[i], set)
		c.Config = strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "podnet", `+routed[typ]+`}`, "DIR", dir)
		result := expect.Value(plugintest.Result(side.Must(t, "ADD", c)))(t)
		for family, ip := range result.IPs {
			s.addr[i][family] = addrOf(ip.Address.IP)
			s.gateway[family] = addrOf(ip.Gateway)
		}
	}
	return s
}

// awaitFound waits until neighbours can find an address that the test has added: the kernel
// begins to listen to them some time later.
func awaitFound(t *testing.T, ns *netns.Handle, name, address string) {
	t.Helper()
	c := expect.Value(links.Dial(ns))(t)
	defer c.Close()
	l := expect.Value(c.Link(name))(t)
	expect.NoError(t, ipam.Await(t.Context(), c, l.Index, []netip.Prefix{netip.MustParsePrefix(address)}))
}

// configureDefaults sets an administrator's defaults for new interfaces.
func configureDefaults(t *testing.T, ns *netns.Handle, set []string) {
	t.Helper()
	for _, s := range set {
		name, value, _ := strings.Cut(s, "=")
		write := func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/"+name, []byte(value), 0o644) }
		expect.NoError(t, ns.Do(write))
	}
}

func addrOf(raw []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(raw) // from a result
	return a.Unmap()
}

// ways lists the senders and receivers of the first packet.
var ways = map[string]func(*testing.T, *site, int) time.Duration{
	"container to container": func(t *testing.T, s *site, family int) time.Duration {
		return plugintest.Connect(t, s.container[0], s.container[1], s.addr[1][family])
	},
	"container to host": func(t *testing.T, s *site, family int) time.Duration {
		return plugintest.Connect(t, s.container[0], s.host, s.gateway[family])
	},
	"host to container": func(t *testing.T, s *site, family int) time.Duration {
		return plugintest.Connect(t, s.host, s.container[0], s.addr[0][family])
	},
	"another machine to container": func(t *testing.T, s *site, family int) time.Duration {
		return plugintest.Connect(t, s.lan, s.container[0], s.addr[0][family])
	},
}

// TestFault_F55_TheFirstPacketPasses through a new pair and through a new
// bridge.
func TestFault_F55_TheFirstPacketPasses(t *testing.T) {
	const rounds = 5
	for typ := range routed {
		for way, connect := range ways {
			for family, name := range []string{"IPv4", "IPv6"} {
				t.Run(strings.Join([]string{typ, way, name}, "/"), func(t *testing.T) {
					var took []time.Duration
					for range rounds {
						took = append(took, connect(t, newSite(t, typ), family))
					}
					slices.Sort(took)
					if t.Log(took); took[rounds/2] > firstPacketBound {
						t.Errorf("the first connection took %s", took[rounds/2])
					}
				})
			}
		}
	}
}

// TestFault_F55_NoDuplicateDetectionForLinkLocalAddresses, whichever mode the
// administrator has chosen. The kernel adds no second one.
func TestFault_F55_NoDuplicateDetectionForLinkLocalAddresses(t *testing.T) {
	for name, set := range map[string][]string{
		"of the MAC address": nil,
		"random":             {"addr_gen_mode=3"},
		"stable":             {"stable_secret=2001:db8::1", "addr_gen_mode=2"},
		"no detection":       {"accept_dad=0"},
		"optimistic":         {"optimistic_dad=1", "use_optimistic=1"},
	} {
		for typ := range routed {
			t.Run(name+"/"+typ, func(t *testing.T) {
				var s *site
				expect.Quick(t, "the first connection", firstPacketBound, func() time.Duration {
					s = newSite(t, typ, set...)
					return plugintest.Connect(t, s.lan, s.container[0], s.addr[0][1])
				})
				ofMAC := name != "random" && name != "stable"
				for _, ns := range []*netns.Handle{s.host, s.container[0], s.container[1]} {
					wantLinkLocals(t, ns, ofMAC)
				}
			})
		}
	}
}

// wantLinkLocals checks the network's interfaces in a namespace. Each has one
// link-local address, derived from its MAC address or not, without duplicate
// detection. Ports of a bridge need none.
func wantLinkLocals(t *testing.T, ns *netns.Handle, ofMAC bool) {
	t.Helper()
	watch := expect.Value(links.WatchAddresses(ns))(t)
	defer watch.Close()
	nettest.Inside(t, ns, func(nl *netlink.Handle) error {
		all, err := nl.LinkList()
		for _, l := range all {
			if name := l.Attrs().Name; name != "lo" && name != "lan0" && l.Attrs().MasterIndex == 0 {
				wantLinkLocal(t, ns, nl, watch, l, ofMAC)
			}
		}
		return err
	})
}

func wantLinkLocal(t *testing.T, ns *netns.Handle, nl *netlink.Handle, watch *links.Socket, l netlink.Link, ofMAC bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	for {
		addrs := expect.Value(nl.AddrList(l, netlink.FAMILY_V6))(t)
		var own []netlink.Addr
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() {
				own = append(own, a)
			} else if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				t.Errorf("%s: %s is tentative", l.Attrs().Name, a.IPNet)
			}
		}
		if len(own) == 0 { // if the kernel adds it, the time is unknown
			if err := watch.Wait(ctx); err != nil {
				t.Errorf("%s has no link-local address: %v", l.Attrs().Name, err)
				return
			}
			continue
		}
		if len(own) > 1 || (own[0].IPNet.String() == linkLocalOf(l.Attrs().HardwareAddr)) != ofMAC {
			t.Errorf("%s with the MAC address %s has the link-local addresses %v", l.Attrs().Name, l.Attrs().HardwareAddr, own)
		}
		if own[0].Flags&unix.IFA_F_NODAD == 0 && setting(t, ns, l.Attrs().Name, "accept_dad") != "0" {
			t.Errorf("%s: the kernel asks others about %s", l.Attrs().Name, own[0].IPNet)
		}
		return
	}
}

// setting returns one of an interface's settings.
func setting(t *testing.T, ns *netns.Handle, ifName, name string) string {
	t.Helper()
	var value []byte
	expect.NoError(t, ns.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/net/ipv6/conf/" + ifName + "/" + name)
		return err
	}))
	return strings.TrimSpace(string(value))
}

// linkLocalOf returns the address that the kernel derives from a MAC address.
func linkLocalOf(mac net.HardwareAddr) string {
	return (&net.IPNet{
		IP:   net.IP{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]},
		Mask: net.CIDRMask(64, 128),
	}).String()
}

// TestFault_F55_AHostWithoutIPv6HasContainers with IPv4 addresses and without
// link-local addresses.
func TestFault_F55_AHostWithoutIPv6HasContainers(t *testing.T) {
	for name, tt := range map[string]struct{ set, fields string }{
		"disabled":          {set: "disable_ipv6=1"},
		"too small an MTU":  {fields: `, "mtu": 1000`},
		"too small for any": {fields: `, "mtu": 68`},
	} {
		for typ := range routed {
			t.Run(name+"/"+typ, func(t *testing.T) {
				host, _ := plugintest.NetNS(t)
				if tt.set != "" {
					configureDefaults(t, host, []string{tt.set})
				}
				side := plugintest.Ours(host, builtin.New())
				c := plugintest.Call{Type: typ, ID: "c1", IfName: "eth0"}
				var container *netns.Handle
				container, c.NetNS = plugintest.NetNS(t)
				c.Config = `{"cniVersion": "1.0.0", "name": "podnet", "type": "` + typ + `", "isGateway": true` + tt.fields + `,
					"ipam": {"type": "static", "addresses": [{"address": "10.2.0.2/24", "gateway": "10.2.0.1"}]}}`
				c.Prev = side.Must(t, "ADD", c)
				plugintest.Connect(t, host, container, netip.MustParseAddr("10.2.0.2"))
				side.Must(t, "CHECK", c)
				side.Must(t, "DEL", c)
			})
		}
	}
}
