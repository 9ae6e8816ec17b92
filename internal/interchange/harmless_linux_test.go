package interchange

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// change is a harmless change to a running container or its host. Every object
// of the plugins still exists.
type change struct {
	name    string
	network network
	host    string                    // script on the host; VETH is the host's end
	guest   string                    // script in the container
	sniff   string                    // the interface to sniff on, on the host, or "container eth0"
	do      func(a *attachment) error // outside both namespaces
	// refused is the error with which the reference plugins report it as
	// damage. Ours must accept it, like every change that theirs accept.
	refused string
	// vlans means that the kernel's bridges must support VLAN filtering.
	vlans bool
}

func changes() []change {
	return slices.Concat(bridgeChanges(), guestChanges(), chainChanges(), deviceChanges(), straightAfterADD())
}

func dual(prepare func() error, plugins ...string) network {
	n := network{prepare: prepare}
	for _, p := range plugins {
		n.plugins = append(n.plugins, fill(p, "dual"))
	}
	return n
}

// script returns a function that runs a script in the current namespace.
func script(text string) func() error {
	return func() error {
		if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", text, err, out)
		}
		return nil
	}
}

// bridgeChanges are an administrator's changes on the host's side.
func bridgeChanges() []change {
	plain := dual(nil, plainBridge)
	uplinked := dual(script(`ip link add cni0 type bridge; ip link add up0 type veth peer name up1
		ip link set up0 address 02:00:00:00:00:42 master cni0; ip link set up0 up; ip link set up1 up`), `{"type": "bridge", "bridge": "cni0", IPAM}`)
	vlans := dual(script("ip link add cni0 type bridge vlan_filtering 1"), `{"type": "bridge", "bridge": "cni0", "vlan": 100, IPAM}`)
	const mac, promisc = "Mac doesn't match", "configured Promisc Mode false doesn't match"
	return []change{
		{name: "a sniffer on the bridge", network: plain, sniff: "cni0", refused: promisc},
		{name: "the bridge set promiscuous", network: plain, host: "ip link set cni0 promisc on", refused: promisc},
		{name: "the bridge has another MAC", network: plain, host: "ip link set cni0 address 02:00:00:00:00:41", refused: mac},
		{name: "another port, whose MAC the bridge takes", network: uplinked, host: `ip link add p0 type veth peer name p1
			ip link set p0 address 02:00:00:00:00:01 master cni0; ip link set up0 nomaster`, refused: mac},
		{name: "the bridge filters VLANs", network: plain, host: "ip link set cni0 type bridge vlan_filtering 1", vlans: true},
		{name: "the bridge no longer filters VLANs", network: vlans, host: "ip link set cni0 type bridge vlan_filtering 0", vlans: true},
		{name: "the bridge has another MTU", network: plain, host: "ip link set cni0 mtu 1400"},
		{name: "more addresses on the bridge", network: plain, host: "ip addr add 192.0.2.1/24 dev cni0; ip addr add 10.77.0.99/24 dev cni0"},
		{name: "the bridge's subnet is wider", network: plain, host: "ip addr add 10.77.0.1/16 dev cni0; ip addr del 10.77.0.1/24 dev cni0"},
		{name: "hairpin mode by the kubelet", network: plain, host: "bridge link set dev VETH hairpin on"},
		{name: "the host's end isolated", network: plain, host: "bridge link set dev VETH isolated on"},
		{name: "the host's end has another MAC", network: plain, host: "ip link set VETH address 02:00:00:00:00:41", refused: "Mac doesn't match"},
		{name: "the host's end has an alias and more names", network: plain, host: "ip link set VETH alias web; ip link property add dev VETH altname web0"},
		{name: "the host's end has a queue", network: plain, host: "tc qdisc add dev VETH root pfifo"},
		{name: "no forwarding on the host", network: plain, host: "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0"},
		{name: "no forwarding on the host, with ptp", network: dual(nil, `{"type": "ptp", IPAM}`), host: "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0"},
		{name: "the host's end of ptp renamed", network: dual(nil, `{"type": "ptp", IPAM}`), host: "ip link set VETH down; ip link set VETH name web0; ip link set web0 up; " +
			"ip addr replace fd77::1/128 dev web0; ip route replace fd77::2/128 dev web0; ip route replace 10.77.0.2 dev web0"},
	}
}

// guestChanges are a privileged program's changes in the container.
func guestChanges() []change {
	var all []change
	for name, n := range map[string]network{
		"bridge":      dual(nil, plainBridge),
		"ptp":         dual(nil, `{"type": "ptp", IPAM}`),
		"macvlan":     dual(uplink, `{"type": "macvlan", "master": "up0", "mode": "bridge", IPAM}`),
		"host-device": dual(device, `{"type": "host-device", "device": "up0", IPAM}`),
	} {
		for _, c := range []change{
			{name: "a sniffer", sniff: "container eth0"},
			{name: "more addresses", guest: "ip addr add 192.0.2.9/24 dev eth0; ip addr add 2001:db8::9/64 dev eth0"},
			{name: "more routes", guest: "ip addr add 192.0.2.9/24 dev eth0; ip route add 198.51.100.0/24 via 192.0.2.1; ip route add blackhole 203.0.113.0/24"},
			{name: "a metric on the default route", guest: "ip route del default; ip route add default via 10.77.0.1 metric 500"},
			{name: "a VPN takes the default routes", guest: `ip link add tun0 type bridge; ip addr add 192.0.2.9/24 dev tun0; ip link set tun0 up
				ip route replace default via 192.0.2.1 dev tun0; ip -6 route del default; ip -6 route add default dev tun0`},
			{name: "an alias, an altname, a queue", guest: `ip link set eth0 alias web; ip link property add dev eth0 altname web0; tc qdisc add dev eth0 root pfifo`},
			{name: "another MTU", guest: "ip link set eth0 mtu 1300"},
			{name: "another path to the namespace", do: (*attachment).otherPath, refused: "doesn't match configured netns"},
		} {
			c.name, c.network = name+": "+c.name, n
			all = append(all, c)
		}
	}
	return append(all, change{name: "loopback: more addresses",
		network: network{plugins: []string{`{"type": "loopback"}`}}, guest: "ip addr add 192.0.2.9/32 dev lo"})
}

// otherPath makes the CHECK use another path to the namespace.
func (a *attachment) otherPath() error {
	link := a.h.path("netns", "other")
	if err := os.Symlink(a.c.path, link); err != nil {
		return err
	}
	a.h.t.Cleanup(func() { _ = os.Remove(link) })
	a.rt.NetNS = link
	return nil
}

// chainChanges affect the settings of tuning and bandwidth.
func chainChanges() []change {
	sysctls := `{"type": "tuning", "dataDir": "STATE/tuning", "sysctl": {"net.core.somaxconn": "500"}}`
	return []change{
		{name: "tuning: a sniffer where only sysctls are configured", network: dual(nil, plainBridge, sysctls), sniff: "container eth0",
			refused: "configured promisc is false"},
		{name: "tuning: modes that it did not set", network: dual(nil, plainBridge, sysctls),
			guest: "ip link set eth0 mtu 1300; ip link set eth0 allmulticast on; ip link set eth0 txqueuelen 7"},
		{name: "bandwidth: another queue", network: dual(nil, plainBridge, bandwidthConf), host: "tc qdisc replace dev VETH root handle 7: pfifo"},
		{name: "host-local: an administrator reserves an address", network: dual(nil, plainBridge),
			do: func(a *attachment) error {
				return os.WriteFile(filepath.Join(a.h.path("state", "ipam"), networkName, "10.77.0.9"), nil, 0o600)
			}},
	}
}

func deviceChanges() []change {
	byDefault := dual(script(`ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up
		ip addr add 192.0.2.1/24 dev up0; ip route add default via 192.0.2.2`), `{"type": "macvlan", IPAM}`)
	return []change{
		{name: "macvlan: the default route leads another way", network: byDefault,
			host: "ip link add vpn type bridge; ip link set vpn up; ip route replace default dev vpn"},
		{name: "macvlan: the host has no default route", network: byDefault, host: "ip route del default", refused: "no default route"},
		{name: "macvlan: the master renamed", network: dual(uplink, `{"type": "macvlan", "master": "up0", IPAM}`),
			host: "ip link set up0 down; ip link set up0 name wan0; ip link set wan0 up", refused: `Link not found`},
		{name: "macvlan: the master's MTU lowered", network: dual(uplink, `{"type": "macvlan", "master": "up0", "mtu": 1400, IPAM}`),
			host: "ip link set up0 mtu 1300", refused: "invalid MTU 1400"},
		{name: "macvlan: the master of passthru has another MAC", network: dual(uplink, `{"type": "macvlan", "master": "up0", "mode": "passthru", IPAM}`),
			host: "ip link set up0 address 02:00:00:00:00:41", refused: "doesn't match container Mac"},
		{name: "host-device: another alias", network: dual(device, `{"type": "host-device", "device": "up0", IPAM}`), guest: "ip link set eth0 alias web"},
		{name: "host-device: no alias", network: dual(device, `{"type": "host-device", "device": "up0", IPAM}`), guest: "ip link set eth0 alias ''"},
	}
}

// straightAfterADD are chains whose own ADD makes changes that an earlier
// plugin's CHECK could mistake for damage.
func straightAfterADD() []change {
	const tuned = `{"type": "tuning", "dataDir": "STATE/tuning", "mtu": 1400}`
	ranges := `"ipam": {"type": "host-local", "dataDir": "STATE/ipam", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}]]}`
	all := []change{
		{name: "bridge, then tuning", network: dual(nil, `{"type": "bridge", "mtu": 1420, IPAM}`, tuned)},
		{name: "ptp, then tuning", network: dual(nil, `{"type": "ptp", "mtu": 1420, IPAM}`, tuned)},
		{name: "macvlan, then tuning", network: dual(uplink, `{"type": "macvlan", "master": "up0", "mtu": 1420, IPAM}`, tuned)},
		{name: "forceAddress with two ranges", network: dual(nil, `{"type": "bridge", "isGateway": true, "forceAddress": true, `+ranges+`}`)},
		{name: "a MAC address in capitals", network: dual(nil, plainBridge, `{"type": "tuning", "dataDir": "STATE/tuning", "mac": "0A:58:0A:4D:00:02"}`),
			refused: "doesn't match container Mac"},
		{name: "a sysctl in hexadecimal", network: dual(nil, plainBridge, `{"type": "tuning", "dataDir": "STATE/tuning", "sysctl": {"net.core.somaxconn": "0x1F4"}}`),
			refused: "current value is 500"},
		{name: "a macvlan that bandwidth has no limit for", network: dual(uplink, `{"type": "macvlan", "master": "up0", IPAM}`, `{"type": "bandwidth"}`),
			refused: "has no veth peer"},
	}
	for _, version := range []string{"0.4.0", "1.1.0"} {
		c := all[1]
		c.name, c.network.version = c.name+", version "+version, version
		all = append(all, c)
	}
	return all
}

// TestFault_F37_CheckFailsOverHarmlessChanges attaches with either side and
// makes a harmless change. Our CHECK must succeed, whether or not the reference
// plugins' does.
func TestFault_F37_CheckFailsOverHarmlessChanges(t *testing.T) {
	wantOutsideAsBefore(t)
	plugintest.UseIPTables(t, "nft")
	withVLANs := filtersVLANs(t)
	for _, c := range changes() {
		if c.vlans && !withVLANs {
			t.Logf("%s: not here: the kernel was built without BRIDGE_VLAN_FILTERING", c.name)
			continue
		}
		for _, adder := range []side{ours(), theirs()} {
			t.Run(c.name+"/added by "+adder.name, func(t *testing.T) {
				t.Parallel()
				c.live(t, adder)
			})
		}
	}
}

func (c change) live(t *testing.T, adder side) {
	h := c.network.newHost(t)
	a := h.attachment(&c.network, "c1")
	expect.Value(a.add(adder))(t)
	c.make(t, a)
	expect.NoError(t, a.check(ours()))
	err := a.check(theirs())
	switch {
	case c.refused == "" && err != nil:
		t.Errorf("the reference plugins' CHECK: %v", err)
	case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
		t.Errorf("the reference plugins' CHECK: got %v, want the known error %q", err, c.refused)
	}
}

// make makes the change.
func (c change) make(t *testing.T, a *attachment) {
	t.Helper()
	if c.host != "" {
		a.h.do(func() error { return script(strings.ReplaceAll(c.host, "VETH", a.hostEnd()))() })
	}
	if c.guest != "" {
		a.c.do(a.h, script(c.guest))
	}
	if c.do != nil {
		expect.NoError(t, c.do(a))
	}
	if name, inside := strings.CutPrefix(c.sniff, "container "); inside {
		a.c.do(a.h, func() error { return sniff(t, name) })
	} else if name != "" {
		a.h.do(func() error { return sniff(t, name) })
	}
}

// sniff lets somebody sniff on an interface until the test ends.
func sniff(t *testing.T, name string) error {
	socket, err := nettest.Sniff(name)
	t.Cleanup(func() { _ = socket.Close() })
	return err
}

// hostEnd returns the host's end of the pair, or nothing if there is none.
func (a *attachment) hostEnd() string {
	for _, l := range expect.Value(netlink.LinkList())(a.h.t) {
		if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Name, "veth") {
			return l.Attrs().Name
		}
	}
	return ""
}

// TestFault_F37_ASnifferKeepsPromiscModeFromBeingSet: a sniffer puts the bridge
// into promiscuous mode while it runs. The configured mode must still be set.
func TestFault_F37_ASnifferKeepsPromiscModeFromBeingSet(t *testing.T) {
	n := dual(script("ip link add cni0 type bridge; ip link set cni0 up"), `{"type": "bridge", "bridge": "cni0", "promiscMode": true, IPAM}`)
	h := n.newHost(t)
	a := h.attachment(&n, "c1")
	h.do(func() error { return sniff(t, "cni0") })
	expect.Value(a.add(ours()))(t)
	h.do(func() error {
		br, err := netlink.LinkByName("cni0")
		if err == nil && br.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
			err = errors.New("the bridge leaves promiscuous mode with the sniffer")
		}
		return err
	})
	expect.NoError(t, a.check(ours()))
}
