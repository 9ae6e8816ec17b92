package interchange

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/embedcni/cni/internal/nettest"
	"github.com/vishvananda/netlink"
)

// configurations returns the valid ones by topic: every field of every type at
// least once.
func configurations() []configuration {
	return slices.Concat(loopbackConfigurations(), bridgeConfigurations(), ptpConfigurations(), ipamConfigurations(),
		deviceConfigurations(), tuningConfigurations(), versionConfigurations())
}

// one returns a configuration of one plugin, with host-local as IPAM.
func one(name, conf string) configuration {
	return configuration{name: name, network: network{plugins: []string{fill(conf, "dual")}}}
}

// chained returns a configuration of a plugin behind a bridge.
func chained(name, conf string) configuration {
	return configuration{name: name, network: network{plugins: []string{fill(plainBridge, "dual"), conf}}}
}

func (c configuration) with(change func(c *configuration)) configuration {
	change(&c)
	return c
}

func loopbackConfigurations() []configuration {
	lo := one("loopback", `{"type": "loopback"}`)
	lo.network.inside = loWasUp
	behind := configuration{name: "loopback behind a bridge", network: network{
		plugins: []string{fill(plainBridge, "v4"), `{"type": "loopback"}`}, inside: loWasUp}}
	return []configuration{lo, behind}
}

func bridgeConfigurations() []configuration {
	vlans := func(c configuration) configuration { c.vlans = true; return c }
	bridge := func(name, fields string) configuration {
		return one("bridge "+name, `{"type": "bridge"`+fields+`}`)
	}
	mac := func(c *configuration) { c.network.caps = `{"mac": "0a:58:0a:4d:00:03"}` }
	return []configuration{
		bridge("with the default name", `, IPAM`),
		bridge("named", `, "bridge": "br-pods", IPAM`),
		bridge("v4", `, `+hostLocal("v4")),
		bridge("v6", `, `+hostLocal("v6")),
		bridge("isGateway v4", `, "isGateway": true, `+hostLocal("v4")),
		bridge("isGateway v6", `, "isGateway": true, `+hostLocal("v6")),
		bridge("gateways and routes that are given", `, "isGateway": true, `+givenRoutes).with(checkFails("bridge", "Expected Route")),
		bridge("isGateway", `, "isGateway": true, IPAM`),
		bridge("isGateway twice", `, "isGateway": true, IPAM`).with(func(c *configuration) { c.containers = 2 }),
		bridge("isDefaultGateway", `, "isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": "STATE/ipam", "subnet": "10.77.0.0/24"}`),
		bridge("isDefaultGateway dual", `, "isDefaultGateway": true, "ipam": {"type": "host-local", "dataDir": "STATE/ipam", "ranges": [`+rangesOf("dual")+`]}`),
		bridge("forceAddress", `, "isGateway": true, "forceAddress": true, IPAM`).with(func(c *configuration) { c.network.prepare = otherGateway("10.77.0.200/24", "fd77::ff/64") }),
		bridge("that has the address", `, "isGateway": true, IPAM`).with(func(c *configuration) { c.network.prepare = otherGateway("10.77.0.1/24", "fd78::1/64") }),
		bridge("mtu", `, "mtu": 1400, IPAM`),
		bridge("mtu with a bridge that has another", `, "mtu": 1400, IPAM`).with(func(c *configuration) { c.network.prepare = otherGateway("10.78.0.1/24") }),
		bridge("hairpinMode", `, "hairpinMode": true, IPAM`),
		bridge("promiscMode", `, "promiscMode": true, IPAM`),
		bridge("portIsolation", `, "portIsolation": true, IPAM`),
		bridge("enabledad", `, "enabledad": true, IPAM`),
		bridge("preserveDefaultVlan", `, "preserveDefaultVlan": false, IPAM`),
		vlans(bridge("vlan", `, "vlan": 100, IPAM`)),
		vlans(bridge("vlan and gateway", `, "vlan": 100, "isGateway": true, IPAM`)),
		vlans(bridge("vlanTrunk", `, "vlanTrunk": [{"id": 200}, {"minID": 300, "maxID": 302}], IPAM`)),
		vlans(bridge("vlan, vlanTrunk and preserveDefaultVlan", `, "vlan": 100, "vlanTrunk": [{"id": 200}], "preserveDefaultVlan": true, IPAM`)),
		bridge("layer 2", ``).with(checkFails("bridge", "no plugin name provided")),
		bridge("disableContainerInterface", `, "disableContainerInterface": true`).with(checkFails("bridge", "no plugin name provided")),
		bridge("mac by capability", `, "capabilities": {"mac": true}, IPAM`).with(mac),
		bridge("mac in args and CNI_ARGS", `, "args": {"cni": {"mac": "0a:58:0a:4d:00:04"}}, IPAM`).with(macInArgs),
		bridge("mac in CNI_ARGS", `, IPAM`).with(macInArgs),
		bridge("mac by all of them", `, "capabilities": {"mac": true}, "args": {"cni": {"mac": "0a:58:0a:4d:00:04"}}, IPAM`).with(mac).with(macInArgs),
		bridge("another interface name", `, "isGateway": true, IPAM`).with(func(c *configuration) { c.network.ifName = "net1" }),
		bridge("with dns", `, "dns": {"nameservers": ["192.0.2.54"], "domain": "pod.example", "options": ["ndots:2"]}, STATIC`),
	}
}

func macInArgs(c *configuration) {
	c.network.args = [][2]string{{"IgnoreUnknown", "1"}, {"MAC", "0a:58:0a:4d:00:05"}}
}

// givenRoutes has gateways that are not the first addresses of their subnets,
// and routes with every field of 1.0.0 and some of 1.1.0.
const givenRoutes = `"ipam": {"type": "static",
	"addresses": [{"address": "10.77.0.2/24", "gateway": "10.77.0.7"}, {"address": "fd77::2/64", "gateway": "fd77::7"}],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.77.0.9", "priority": 50},
		{"dst": "10.8.0.0/16", "table": 300}, {"dst": "10.9.0.0/16", "scope": 0}]}`

// checkFails declares a fault of a reference plugin's CHECK. It does not find
// routes of other tables, and it needs an IPAM plugin.
func checkFails(typ, err string) func(*configuration) {
	return func(c *configuration) { c.network.faults = []fault{{typ, "CHECK", err}} }
}

// otherGateway makes the bridge with its own addresses.
func otherGateway(addresses ...string) func() error {
	return func() error {
		br := &netlink.Bridge{LinkAttrs: nettest.Attrs("cni0")}
		err := errors.Join(netlink.LinkAdd(br), netlink.LinkSetUp(br))
		for _, address := range addresses {
			err = errors.Join(err, addAddress(br, address))
		}
		return err
	}
}

func addAddress(link netlink.Link, address string) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, addr)
}

func ptpConfigurations() []configuration {
	ptp := func(name, fields string) configuration { return one("ptp "+name, `{"type": "ptp"`+fields+`}`) }
	return []configuration{
		ptp("dual", `, IPAM`),
		ptp("v4", `, "ipam": {"type": "host-local", "dataDir": "STATE/ipam", "subnet": "10.77.0.0/24"}`),
		ptp("v6", `, "ipam": {"type": "host-local", "dataDir": "STATE/ipam", "subnet": "fd77::/64", "routes": [{"dst": "::/0"}]}`),
		ptp("mtu", `, "mtu": 1300, IPAM`),
		ptp("twice", `, IPAM`).with(func(c *configuration) { c.containers = 2 }),
		ptp("dns of its own", `, "dns": {"nameservers": ["192.0.2.53"], "search": ["example"]}, IPAM`),
		ptp("dns of the ipam", `, "dns": {}, STATIC`),
		ptp("gateways and routes that are given", `, `+givenRoutes).with(checkFails("ptp", "Expected Route")),
		ptp("several addresses", `, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"},
			{"address": "10.78.0.9/24", "gateway": "10.78.0.1"}, {"address": "fd77::9/64", "gateway": "fd77::1"}], "routes": [{"dst": "192.0.2.0/24", "gw": "10.78.0.1"}]}`),
	}
}

func ipamConfigurations() []configuration {
	local := func(name, fields string) configuration {
		return one("host-local "+name, `{"type": "bridge", "capabilities": {"ips": true, "ipRanges": true}, "ipam": {"type": "host-local", "dataDir": "STATE/ipam", `+fields+`}}`)
	}
	static := func(name, fields string) configuration {
		return one("static "+name, `{"type": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "static"`+fields+`}}`)
	}
	caps := func(c configuration, caps string) configuration { c.network.caps = caps; return c }
	args := func(c configuration, args ...[2]string) configuration {
		c.network.args = append([][2]string{{"IgnoreUnknown", "1"}}, args...)
		return c
	}
	three := func(c configuration) configuration { c.containers = 3; return c }
	resolv := local("resolvConf", `"subnet": "10.77.0.0/24", "resolvConf": "STATE/resolv.conf"`)
	resolv.network.files = [][2]string{{"resolv.conf", "# a comment\nnameserver 192.0.2.53\nnameserver 2001:db8::53\ndomain pod.example\nsearch a.example b.example\noptions ndots:2 timeout:1\n"}}
	return []configuration{
		three(local("subnet", `"subnet": "10.77.0.0/24"`)),
		local("alone", `"subnet": "10.77.0.0/24"`).with(func(c *configuration) {
			c.network.plugins = []string{fill(`{"type": "host-local", IPAM}`, "dual")}
		}),
		three(local("rangeStart and rangeEnd", `"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.50", "rangeEnd": "10.77.0.60", "gateway": "10.77.0.254"`)),
		three(local("several ranges in a set", `"ranges": [[{"subnet": "10.77.0.0/30"}, {"subnet": "10.78.0.0/30"}, {"subnet": "10.79.0.0/24", "rangeStart": "10.79.0.7"}]]`)),
		three(local("several sets", `"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}], [{"subnet": "fd77::/64"}]]`)),
		local("subnet and ranges", `"subnet": "10.77.0.0/24", "ranges": [[{"subnet": "fd77::/112", "gateway": "fd77::ff"}]]`),
		resolv,
		local("routes", `"subnet": "10.77.0.0/24", "routes": [{"dst": "192.0.2.0/24"}, {"dst": "198.51.100.0/24", "gw": "10.77.0.7"}]`),
		local("routes of 1.1", `"subnet": "10.77.0.0/24", "routes": [{"dst": "192.0.2.0/24", "mtu": 1300, "advmss": 1200, "priority": 7, "table": 100},
			{"dst": "198.51.100.0/24", "gw": "10.77.0.7", "priority": 9}]`).with(func(c *configuration) {
			c.network.version = "1.1.0"
			checkFails("bridge", "Expected Route")(c)
			c.differs = []string{"route 192.0.2.0/24"} // theirs sets neither mtu nor advmss
		}),
		caps(local("ips by capability", `"ranges": [`+rangesOf("dual")+`]`), `{"ips": ["10.77.0.77", "fd77::77/64"]}`),
		caps(local("ipRanges by capability", `"subnet": "10.77.0.0/24"`), `{"ipRanges": [[{"subnet": "10.99.0.0/24"}], [{"subnet": "fd99::/64"}]]}`),
		local("ips in args", `"ranges": [`+rangesOf("dual")+`]`).with(func(c *configuration) {
			c.network.plugins = []string{fill(`{"type": "bridge", "args": {"cni": {"ips": ["10.77.0.78"]}}, IPAM}`, "dual")}
		}),
		args(local("IP in CNI_ARGS", `"subnet": "10.77.0.0/24"`), [2]string{"IP", "10.77.0.79"}),
		static("addresses and routes", `, "addresses": [{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}, {"address": "fd77::9/64"}],
			"routes": [{"dst": "192.0.2.0/24", "gw": "10.77.0.254"}, {"dst": "198.51.100.0/24"}],
			"dns": {"nameservers": ["192.0.2.53"], "domain": "pod.example", "search": ["example"], "options": ["ndots:2"]}`),
		args(static("IP and GATEWAY in CNI_ARGS", ``), [2]string{"IP", "10.77.0.9/24,fd77::9/64"}, [2]string{"GATEWAY", "10.77.0.1,fd77::1"}),
		caps(static("ips by capability", `, "addresses": [{"address": "10.88.0.9/24"}]`), `{"ips": ["10.77.0.9/24", "fd77::9/64"]}`),
		static("ips in args", ``).with(func(c *configuration) {
			c.network.plugins = []string{`{"type": "bridge", "args": {"cni": {"ips": ["10.77.0.9/24"]}}, "ipam": {"type": "static"}}`}
		}),
		static("alone", ``).with(func(c *configuration) { c.network.plugins = []string{fill(`{"type": "static", STATIC}`, "dual")} }),
	}
}

func deviceConfigurations() []configuration {
	macvlan := func(name, fields string) configuration {
		return one("macvlan "+name, `{"type": "macvlan"`+fields+`}`).with(func(c *configuration) { c.network.prepare = uplinkWithAddress })
	}
	hostDevice := func(name, fields string) configuration {
		return one("host-device "+name, `{"type": "host-device"`+fields+`}`).with(func(c *configuration) { c.network.prepare = device })
	}
	all := []configuration{
		macvlan("of the default route's link", `, IPAM`),
		macvlan("mtu", `, "master": "up0", "mtu": 1400, IPAM`),
		macvlan("mac", `, "master": "up0", "mac": "0a:58:0a:4d:00:02", IPAM`),
		macvlan("mac by capability", `, "master": "up0", "mac": "0a:58:0a:4d:00:02", "capabilities": {"mac": true}, IPAM`).with(func(c *configuration) {
			c.network.caps = `{"mac": "0a:58:0a:4d:00:03"}`
		}),
		macvlan("mac in CNI_ARGS", `, "master": "up0", IPAM`).with(macInArgs),
		macvlan("bcqueuelen", `, "master": "up0", "bcqueuelen": 2000, IPAM`),
		macvlan("layer 2", `, "master": "up0"`),
		macvlan("all fields", `, "master": "up0", "mode": "private", "mtu": 1300, "mac": "0a:58:0a:4d:00:02", "bcqueuelen": 500,
			"dns": {"nameservers": ["10.77.0.1"]}, STATIC`),
		macvlan("an empty ipam", `, "master": "up0", "ipam": {}`),
		macvlan("linkInContainer", `, "master": "in0", "linkInContainer": true, "mode": "passthru", IPAM`).with(func(c *configuration) {
			c.network.inside = func() error { return errors.Join(cable("in0", "in1"), linkUp("in0", "in1")) }
		}),
		hostDevice("device", `, "device": "up0", "dns": {"nameservers": ["10.77.0.1"]}, IPAM`),
		hostDevice("device layer 2", `, "device": "up0", "dns": {"nameservers": ["10.77.0.1"]}`),
		hostDevice("hwaddr", `, "hwaddr": "0a:00:00:00:00:77", IPAM`).with(func(c *configuration) { c.network.prepare = deviceWithMAC }),
		hostDevice("that was up", `, "device": "up0", IPAM`).with(func(c *configuration) { c.network.prepare = uplink }),
	}
	for _, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		all = append(all, macvlan("mode "+mode, fmt.Sprintf(`, "master": "up0", "mode": %q, IPAM`, mode)))
	}
	return all
}

func uplinkWithAddress() error {
	if err := uplink(); err != nil {
		return err
	}
	return nettest.OnLink("up0", func(up0 netlink.Link) error {
		return errors.Join(addAddress(up0, "192.0.2.2/24"), netlink.RouteAdd(&netlink.Route{LinkIndex: up0.Attrs().Index, Gw: net.IPv4(192, 0, 2, 1)}))
	})
}

func deviceWithMAC() error {
	if err := device(); err != nil {
		return err
	}
	return nettest.OnLink("up0", func(up0 netlink.Link) error {
		return netlink.LinkSetHardwareAddr(up0, net.HardwareAddr{10, 0, 0, 0, 0, 0x77})
	})
}

func tuningConfigurations() []configuration {
	tuning := func(name, fields string) configuration {
		return chained("tuning "+name, `{"type": "tuning", "dataDir": "STATE/tuning"`+fields+`}`)
	}
	bandwidth := func(name, fields string) configuration {
		return chained("bandwidth "+name, `{"type": "bandwidth"`+fields+`}`)
	}
	return []configuration{
		tuning("nothing", ``),
		tuning("sysctl", `, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv6/conf/IFNAME/hop_limit": "33", "net.core.somaxconn": "500"}`),
		tuning("mac", `, "mac": "0a:58:0a:4d:00:02"`),
		tuning("mac by capability", `, "mac": "0a:58:0a:4d:00:02", "capabilities": {"mac": true}`).with(func(c *configuration) { c.network.caps = `{"mac": "0a:58:0a:4d:00:03"}` }),
		tuning("promisc", `, "promisc": true`),
		tuning("mtu", `, "mtu": 1400`),
		tuning("allmulti on", `, "allmulti": true`),
		tuning("allmulti off", `, "allmulti": false`),
		tuning("txQLen", `, "txQLen": 700`),
		tuning("txQLen 0", `, "txQLen": 0`),
		// Without a sysctl of its own the reference plugin panics.
		tuning("in args", `, "sysctl": {"net.core.somaxconn": "500"}, "args": {"cni": {"mac": "0a:58:0a:4d:00:04", "mtu": 1300, "promisc": true,
			"allmulti": true, "txQLen": 300, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}}`),
		bandwidth("both ways", `, "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 4000000, "egressBurst": 4000000`),
		bandwidth("in", `, "ingressRate": 123456, "ingressBurst": 654321`),
		bandwidth("out", `, "egressRate": 123456, "egressBurst": 654321`),
		bandwidth("none", ``),
		bandwidth("by capability", `, "capabilities": {"bandwidth": true}`).with(func(c *configuration) {
			c.network.caps = `{"bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 16000000, "egressBurst": 1600000}}`
		}),
	}
}

// versionConfigurations exist in every version of the specification whose
// results differ from the next version's.
func versionConfigurations() []configuration {
	var all []configuration
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, typ := range []string{"bridge", "ptp"} {
			all = append(all, one(typ+" "+version, `{"type": "`+typ+`", "mtu": 1400, IPAM}`).with(func(c *configuration) { c.network.version = version }))
		}
	}
	everything := configuration{name: "everything 1.1.0", containers: 2, network: network{version: "1.1.0"}}
	for _, p := range []string{plainBridge, tuningConf, bandwidthConf} {
		everything.network.plugins = append(everything.network.plugins, fill(p, "dual"))
	}
	return append(all, everything)
}
