package builtin_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// machine is a host on a LAN, with a container.
type machine struct {
	plugintest.Side
	host, container *netns.Handle
	call            plugintest.Call
	dir             string // host-local's directory
}

// lanTypes are the plugins that put a container on its host's LAN, through the
// interface lan0. For bridge, an administrator has made lan0 with an uplink.
var lanTypes = map[string]string{
	"macvlan":     `"type": "macvlan", "master": "lan0"`,
	"host-device": `"type": "host-device", "device": "lan0"`,
	"bridge":      `"type": "bridge", "bridge": "lan0"`,
}

func newMachine(t *testing.T, lan *plugintest.LAN, typ, ipam string) *machine {
	t.Helper()
	m := &machine{dir: t.TempDir()}
	m.host, _ = plugintest.NetNS(t)
	if typ == "bridge" {
		onBridge(t, lan, m.host)
	} else {
		lan.Cable(t, m.host, "lan0")
		nettest.SetUp(t, m.host, "lan0")
	}
	m.Side = plugintest.Ours(m.host, builtin.New())
	m.call = plugintest.Call{Type: typ, ID: "c1", IfName: "eth0"}
	m.container, m.call.NetNS = plugintest.NetNS(t)
	m.call.Config = strings.ReplaceAll(`{"cniVersion": "1.0.0", "name": "podnet", `+lanTypes[typ]+`, "ipam": `+ipam+`}`, "DIR", m.dir)
	return m
}

// onBridge gives a host the bridge lan0 with an uplink that is on the LAN as far as IPv6
// is concerned: a tunnel to the LAN's own bridge. A cable is a veth, so it
// would look like a container's.
func onBridge(t testing.TB, l *plugintest.LAN, host *netns.Handle) {
	t.Helper()
	l.Cable(t, host, "cable")
	nettest.SetUp(t, host, "cable")
	number := nettest.Link(t, host, "cable").Attrs().ParentIndex
	machine, own := net.IPv4(10, 1, 0, 99), net.IPv4(10, 1, 0, byte(100+number))
	nettest.AddAddress(t, host, "cable", own.String()+"/24")
	tunnel := func(ns *netns.Handle, name, master string, remote net.IP) {
		nettest.Change(t, ns, master, func(nl *netlink.Handle, br netlink.Link) error {
			a := nettest.Attrs(name)
			a.MasterIndex = br.Attrs().Index
			return nl.LinkAdd(&netlink.Vxlan{LinkAttrs: a, VxlanId: number, Group: remote, Port: 4789, Learning: true})
		})
		nettest.SetUp(t, ns, name)
	}
	nettest.AddBridge(t, host, "lan0")
	nettest.SetUp(t, host, "lan0")
	tunnel(host, "lan0-up", "lan0", machine)
	tunnel(l.Machine, fmt.Sprint("tunnel", number), "switch", own)
}

// addresses returns those of the container's interface.
func (m *machine) addresses(t *testing.T) []links.Address {
	t.Helper()
	c := expect.Value(links.Dial(m.container))(t)
	defer c.Close()
	link := expect.Value(c.Link(m.call.IfName))(t)
	return expect.Value(c.Addresses(link.Index))(t)
}

// taken has pairs of IPAM configurations. Both machines of a pair give a
// container the address fd00::2.
var taken = map[string][2]string{
	"with a gateway": {
		`{"type": "host-local", "dataDir": "DIR", "subnet": "fd00::/64"}`,
		`{"type": "host-local", "dataDir": "DIR", "subnet": "fd00::/64"}`,
	},
	"without a gateway": {
		`{"type": "static", "addresses": [{"address": "fd00::2/64"}]}`,
		`{"type": "static", "addresses": [{"address": "fd00::2/64"}]}`,
	},
	"the second of several": {
		`{"type": "host-local", "dataDir": "DIR", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}`,
		`{"type": "host-local", "dataDir": "DIR", "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20"}],
			[{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::20"}], [{"subnet": "fd00::/64"}]]}`,
	},
}

// TestFault_F53_AnAddressThatAnotherMachineHasIsRefused: two machines on a LAN
// must not share an address. The first one keeps it, with its connections.
func TestFault_F53_AnAddressThatAnotherMachineHasIsRefused(t *testing.T) {
	for typ := range lanTypes {
		for name, ipams := range taken {
			t.Run(typ+"/"+name, func(t *testing.T) {
				t.Parallel()
				refused(t, typ, ipams)
			})
		}
	}
}

func refused(t *testing.T, typ string, ipams [2]string) {
	address := netip.MustParseAddr("fd00::2")
	lan := plugintest.NewLAN(t)
	first, second := newMachine(t, lan, typ, ipams[0]), newMachine(t, lan, typ, ipams[1])
	first.call.Prev = first.Must(t, "ADD", first.call)
	for _, a := range first.addresses(t) {
		if a.Tentative {
			t.Errorf("address %s cannot be used when ADD returns", a.Prefix)
		}
	}
	plugintest.Connect(t, lan.Machine, first.container, address)

	host := plugintest.Audit(t, second.host)
	container := plugintest.Audit(t, second.container, second.dir)
	err := second.MustFail(t, "ADD", second.call)
	for _, want := range []string{"fd00::2", `"eth0"`, "another machine"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
	t.Log(err)
	plugintest.NoLeak(t, container, plugintest.Audit(t, second.container, second.dir))
	plugintest.NoLeak(t, host, plugintest.Audit(t, second.host))
	plugintest.Connect(t, lan.Machine, first.container, address)

	// The address is free again after the removal of its first container.
	first.Must(t, "DEL", first.call)
	if strings.Contains(ipams[1], "host-local") { // which allocates another one first
		second.call.Config = strings.Replace(second.call.Config, `"subnet": "fd00::/64"`, `"subnet": "fd00::/64", "rangeEnd": "fd00::2"`, 1)
	}
	second.call.Prev = second.Must(t, "ADD", second.call)
	if typ == "host-device" { // which does not announce addresses, like the reference plugin
		nettest.Change(t, lan.Machine, "switch", func(nl *netlink.Handle, l netlink.Link) error {
			return nl.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: address.AsSlice(), Family: netlink.FAMILY_V6})
		})
	}
	plugintest.Connect(t, lan.Machine, second.container, address)
	second.Must(t, "CHECK", second.call)
}

// carrierBound is less than the wait of host-device's ADD for a possible
// carrier.
const carrierBound = 4 * time.Second

// TestFault_F53_DetectionGoesOnWhereThereWasNoCarrier: duplicates are detected
// when a carrier comes, and the address is not used before.
func TestFault_F53_DetectionGoesOnWhereThereWasNoCarrier(t *testing.T) {
	for _, typ := range []string{"macvlan", "host-device"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			address := netip.MustParsePrefix("fd00::99/64")
			var lan *plugintest.LAN
			var m *machine
			expect.Quick(t, "ADD without a carrier, which never comes,", carrierBound, func() time.Duration {
				lan = plugintest.NewLAN(t)
				m = newMachine(t, lan, typ, `{"type": "static", "addresses": [{"address": "fd00::99/64"}]}`)
				nettest.Change(t, lan.Machine, "port1", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetDown(l) })
				begin := time.Now()
				m.call.Prev = m.Must(t, "ADD", m.call)
				return time.Since(begin)
			})
			watch := expect.Value(links.WatchAddresses(m.container))(t)
			defer watch.Close()
			nettest.SetUp(t, lan.Machine, "port1")
			for {
				for _, a := range m.addresses(t) {
					if a.Prefix == address && a.Duplicate {
						t.Log(m.MustFail(t, "CHECK", m.call))
						return
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
				err := watch.Wait(ctx)
				cancel()
				if err != nil {
					t.Fatalf("the duplicate was not found: %v", err)
				}
			}
		})
	}
}

// TestFault_F53_AGatewayThatAnotherMachineIsIsRefused: the host must not take
// its router's address.
func TestFault_F53_AGatewayThatAnotherMachineIsIsRefused(t *testing.T) {
	t.Parallel()
	lan := plugintest.NewLAN(t)
	m := newMachine(t, lan, "bridge", `{"type": "static", "addresses": [{"address": "fd00::2/64", "gateway": "fd00::99"}]}`)
	m.call.Config = strings.Replace(m.call.Config, `"bridge": "lan0"`, `"bridge": "lan0", "isGateway": true`, 1)
	host, container := plugintest.Audit(t, m.host), plugintest.Audit(t, m.container)
	err := m.MustFail(t, "ADD", m.call)
	if !strings.Contains(err.Error(), "fd00::99") || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("got %v", err)
	}
	plugintest.NoLeak(t, container, plugintest.Audit(t, m.container))
	plugintest.NoLeak(t, host, plugintest.Audit(t, m.host))
}

// TestABridgeOfContainersAsksNobody: detection takes at least 1 s. On these
// bridges there is nobody else, or detection is off.
func TestABridgeOfContainersAsksNobody(t *testing.T) {
	for name, tt := range map[string]struct {
		uplink bool
		fields string
	}{
		"a new bridge":                {},
		"a gateway":                   {fields: `, "isGateway": true`},
		"an uplink, and it is not to": {uplink: true, fields: `, "enabledad": false`},
		"the second container":        {fields: `, "isDefaultGateway": true`},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Quick(t, "ADD", time.Second, func() (longest time.Duration) {
				lan, dir := plugintest.NewLAN(t), t.TempDir()
				host, _ := plugintest.NetNS(t)
				if tt.uplink {
					onBridge(t, lan, host)
				}
				side := plugintest.Ours(host, builtin.New())
				for i := range 2 {
					c := plugintest.Call{Type: "bridge", ID: []string{"c1", "c2"}[i], IfName: "eth0"}
					_, c.NetNS = plugintest.NetNS(t)
					c.Config = `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "lan0"` + tt.fields + `,
						"ipam": {"type": "host-local", "dataDir": "` + dir + `", "subnet": "fd00::/64"}}`
					begin := time.Now()
					side.Must(t, "ADD", c)
					longest = max(longest, time.Since(begin))
				}
				return longest
			})
		})
	}
}
