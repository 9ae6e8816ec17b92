package veth_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/builtin/veth"
)

// damage is something that happens to an attachment.
type damage struct {
	name   string
	where  string // "host" or "container"
	script string // VETH is the host's end
	want   string // CHECK's error
}

// TestCheckTellsDamage: CHECK reports each kind of damage.
func TestCheckTellsDamage(t *testing.T) {
	tests := []struct {
		side    attaching
		damages []damage
	}{
		{attaching{name: "bridge", typ: "bridge", conf: `"isGateway": true, "mtu": 1400, ` + staticGW}, []damage{
			{"the container's end is gone", "container", "ip link del eth0", `in the container: interface "eth0": no such device`},
			{"the container's end is another's", "container", "ip link del eth0; ip link add eth0 type bridge; ip link set eth0 up",
				`interface "eth0" in the container: it is not a veth interface, but "bridge"`},
			{"the container's end is down", "container", "ip link set eth0 down", `interface "eth0" in the container: it is down`},
			{"its MAC is another", "container", "ip link set eth0 address 02:00:00:00:00:42",
				`interface "eth0" in the container: its MAC address is 02:00:00:00:00:42, not MAC`},
			{"the IPv4 address is gone", "container", "ip addr del 10.1.0.2/24 dev eth0", `interface "eth0" in the container: address 10.1.0.2/24 is missing`},
			{"the IPv6 address is gone", "container", "ip addr del fd00:1::2/64 dev eth0", `interface "eth0" in the container: address fd00:1::2/64 is missing`},
			{"the length is another", "container", "ip addr add 10.1.0.2/25 dev eth0; ip addr del 10.1.0.2/24 dev eth0; ip route replace 10.1.0.0/24 dev eth0",
				`interface "eth0" in the container: address 10.1.0.2/24 is missing`},
			{"the route to the subnet is gone", "container", "ip route del 10.1.0.0/24", `interface "eth0" in the container: route 10.1.0.0/24 is missing`},
			{"the default route is gone", "container", "ip route del default", `interface "eth0" in the container: route 0.0.0.0/0 via 10.1.0.7 is missing`},
			{"the IPv6 default route is gone", "container", "ip -6 route del default", `interface "eth0" in the container: route ::/0 via fd00:1::7 is missing`},
			{"a route is gone", "container", "ip route del 10.7.0.0/16", `interface "eth0" in the container: route 10.7.0.0/16 via 10.1.0.9 is missing`},
			{"a route is of another table", "container", "ip route del 10.8.0.0/16 table 300; ip route add 10.8.0.0/16 via 10.1.0.7",
				`interface "eth0" in the container: route 10.8.0.0/16 via 10.1.0.7 is missing`},
			{"the host's end is down", "host", "ip link set VETH down", `interface "vethX" on the host: it is down`},
			{"the host's end is off the bridge", "host", "ip link set VETH nomaster", `interface "vethX" is not on bridge "cni0"`},
			{"the host's end is on another bridge", "host", "ip link add other type bridge; ip link set VETH master other", `interface "vethX" is not on bridge "cni0"`},
			{"the bridge is gone", "host", "ip link del cni0", `bridge: interface "cni0": no such device`},
			{"the bridge is no bridge", "host", "ip link del cni0; ip link add cni0 type veth peer name x", `interface "cni0" is not a bridge, but "veth"`},
			{"the bridge is down", "host", "ip link set cni0 down", `bridge "cni0" is down`},
			{"the bridge lost its IPv4 address", "host", "ip addr del 10.1.0.7/24 dev cni0", `interface "cni0" lacks the gateway's address 10.1.0.7/24`},
			{"the bridge lost its IPv6 address", "host", "ip addr del fd00:1::7/64 dev cni0", `interface "cni0" lacks the gateway's address fd00:1::7/64`},
		}},
		{attaching{name: "modes", typ: "bridge", conf: `"hairpinMode": true, "portIsolation": true, ` + static4}, []damage{
			{"hairpin", "host", "bridge link set dev VETH hairpin off", `"hairpinMode": interface "vethX" is not in hairpin mode`},
			{"isolated", "host", "bridge link set dev VETH isolated off", `"portIsolation": interface "vethX" is not isolated`},
		}},
		{attaching{name: "promiscuous", typ: "bridge", conf: `"promiscMode": true, ` + static4}, []damage{
			{"not set", "host", "ip link set cni0 promisc off", `"promiscMode": bridge "cni0" is not in promiscuous mode`},
		}},
		{attaching{name: "forced", typ: "bridge", conf: `"isGateway": true, "forceAddress": true, ` + staticGW}, []damage{
			{"no address", "host", "ip addr flush dev cni0 scope global; ip -6 addr show", `interface "cni0" lacks the gateway's address 10.1.0.7/24`},
		}},
		{attaching{name: "spoofing", typ: "bridge", conf: `"macspoofchk": true, ` + static4}, []damage{
			{"no rules", "host", "nft flush ruleset", `"macspoofchk": nftables: set bridge embedcni ports is missing`},
		}},
		{attaching{name: "ptp", typ: "ptp", conf: staticGW}, []damage{
			{"the container's end is gone", "container", "ip link del eth0", `in the container: interface "eth0": no such device`},
			{"the container's end is down", "container", "ip link set eth0 down", `interface "eth0" in the container: it is down`},
			{"the address is gone", "container", "ip addr del 10.1.0.2/24 dev eth0", `interface "eth0" in the container: address 10.1.0.2/24 is missing`},
			{"the route to the subnet is gone", "container", "ip -6 route del fd00:1::/64", `interface "eth0" in the container: route fd00:1::/64 is missing`},
			{"the default route is gone", "container", "ip route del default", `interface "eth0" in the container: route 0.0.0.0/0 via 10.1.0.7 is missing`},
			{"the host's end is down", "host", "ip link set VETH down", `interface "vethX" on the host: it is down`},
			{"the host's end is another's", "host", "M=$(ip -br link show VETH | awk '{print $3}'); ip link set VETH down; ip link set VETH name other; ip link add VETH address $M type veth peer name x; ip link set VETH up; ip link set x up",
				`interface "other" on the host: it is down`},
			{"the host's IPv4 address is gone", "host", "ip addr del 10.1.0.7/32 dev VETH", `interface "vethX" on the host: the gateway's address 10.1.0.7 is missing`},
			{"the host's IPv6 address is gone", "host", "ip addr del fd00:1::7/128 dev VETH", `interface "vethX" on the host: the gateway's address fd00:1::7 is missing`},
			{"the host's route is gone", "host", "ip route del 10.1.0.2/32", `interface "vethX" on the host: route 10.1.0.2/32 is missing`},
			{"the host's IPv6 route is gone", "host", "ip route del fd00:1::2/128", `interface "vethX" on the host: route fd00:1::2/128 is missing`},
		}},
	}
	for _, test := range tests {
		for _, d := range test.damages {
			t.Run(test.side.name+"/"+d.name, func(t *testing.T) {
				h := newHost(t)
				c := test.side.call()
				h.namespace(c.id)
				c.prev = h.must("ADD", c)
				h.must("CHECK", c)
				script := strings.ReplaceAll(d.script, "VETH", h.hostEnd(c.prev))
				if d.where == "host" {
					h.sh(script)
				} else {
					h.in(c.id, script)
				}
				h.mustFail("CHECK", c, d.want)
				h.must("DEL", c)
			})
		}
	}
}

// hostEnd returns the name of the host's end in a result.
func (h *host) hostEnd(result []byte) string {
	h.t.Helper()
	r, err := plugintest.Result(result)
	if err != nil {
		h.t.Fatal(err)
	}
	return veth.HostInterface(r, ifName).Name
}

func TestCheckReportsWhatTheResultLacks(t *testing.T) {
	h := newHost(t)
	c := attaching{typ: "bridge", conf: static4}.call()
	h.namespace(c.id)
	h.must("ADD", c)
	h.mustFail("CHECK", c, `IPAM plugin "static": prevResult is missing: there is nothing to check against`)
	with := func(rest string) {
		c.prev = []byte(h.expand(`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}], ` + rest + `}`))
	}
	with(`"interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/one"}, {"name": "eth0", "sandbox": "/another"}]`)
	h.mustFail("CHECK", c, `prevResult has no interface "eth0" in DIR/netns/c1`)
	with(`"interfaces": [{"name": "eth0", "sandbox": "DIR/netns/c1"}]`)
	h.mustFail("CHECK", c, `prevResult has no bridge "cni0"`)
	with(`"interfaces": [{"name": "eth0", "sandbox": "DIR/netns/c1"}, {"name": "cni0"}]`)
	h.mustFail("CHECK", c, `prevResult has no interface of the host before "eth0"`)
	c.conf = strings.Replace(c.conf, static4, `"mtu": 0`, 1)
	c.prev = nil
	h.mustFail("CHECK", c, `prevResult is missing: there is nothing to check against`)
}
