package interchange

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/nettest"
)

// template is a chain of plugins with a case for each family. IPAM stands for host-local's
// configuration.
type template struct {
	name     string
	network  network
	families []string // empty: all
}

// matrixCase is a template with the family filled in.
type matrixCase struct {
	name, family string
	network      network
}

// families returns those of a chain's addresses.
func families() []string { return []string{"v4", "v6", "dual"} }

func rangesOf(family string) string {
	return map[string]string{
		"v4":   `[{"subnet": "10.77.0.0/24"}]`,
		"v6":   `[{"subnet": "fd77::/64"}]`,
		"dual": `[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]`,
	}[family]
}

func routesOf(family string) string {
	return map[string]string{
		"v4":   `{"dst": "0.0.0.0/0"}`,
		"v6":   `{"dst": "::/0"}`,
		"dual": `{"dst": "0.0.0.0/0"}, {"dst": "::/0"}`,
	}[family]
}

func hostLocal(family string) string {
	return fmt.Sprintf(`"ipam": {"type": "host-local", "dataDir": "STATE/ipam", "ranges": [%s], "routes": [%s]}`,
		rangesOf(family), routesOf(family))
}

func static(family string) string {
	addresses := map[string]string{
		"v4":   `{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}`,
		"v6":   `{"address": "fd77::9/64", "gateway": "fd77::1"}`,
		"dual": `{"address": "10.77.0.9/24", "gateway": "10.77.0.1"}, {"address": "fd77::9/64", "gateway": "fd77::1"}`,
	}
	return fmt.Sprintf(`"ipam": {"type": "static", "addresses": [%s], "routes": [%s],
		"dns": {"nameservers": ["192.0.2.53"], "search": ["pod.example"]}}`, addresses[family], routesOf(family))
}

const (
	plainBridge = `{"type": "bridge", "bridge": "cni0", "isGateway": true, IPAM}`
	tuningConf  = `{"type": "tuning", "mac": "0a:58:0a:4d:00:02", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 500,
		"dataDir": "STATE/tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}}`
	bandwidthConf = `{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 4000000, "egressBurst": 4000000}`
)

// loWasUp sets lo up and down again. It then differs from a new one: it keeps
// its address.
func loWasUp() error {
	return errors.Join(nettest.OnLink("lo", netlink.LinkSetUp), nettest.OnLink("lo", netlink.LinkSetDown))
}

// leases returns flanneld's file for each family.
func leases() (files [][2]string) {
	const v4, v6 = "FLANNEL_NETWORK=10.77.0.0/16\nFLANNEL_SUBNET=10.77.3.1/24\n", "FLANNEL_IPV6_NETWORK=fd77::/56\nFLANNEL_IPV6_SUBNET=fd77:0:0:3::1/64\n"
	for family, subnets := range map[string]string{"v4": v4, "v6": v6, "dual": v4 + v6} {
		files = append(files, [2]string{"leases/" + family, subnets + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"})
	}
	return files
}

// device makes host-device's device. DEL returns it down, so it starts down. It
// gets a carrier with the container: without one, an IPv6 address is waited for.
func device() error { return errors.Join(cable("up0", "up1"), linkUp("up1")) }

// uplink makes macvlan's master.
func uplink() error {
	if err := cable("up0", "up1"); err != nil {
		return err
	}
	return linkUp("up0", "up1")
}

func templates() []template {
	return []template{
		{name: "loopback", network: network{plugins: []string{`{"type": "loopback"}`}, inside: loWasUp}, families: []string{"dual"}},
		{name: "host-local", network: network{plugins: []string{`{"type": "host-local", IPAM}`}}},
		{name: "static", network: network{plugins: []string{`{"type": "static", STATIC}`}}},
		{name: "bridge", network: network{plugins: []string{`{"type": "bridge", "bridge": "cni0", IPAM}`}}},
		{name: "bridge static", network: network{plugins: []string{`{"type": "bridge", "bridge": "cni0", "isGateway": true, STATIC}`}}},
		{name: "bridge modes", network: network{plugins: []string{
			`{"type": "bridge", "bridge": "cni0", "isGateway": true, "portIsolation": true, "hairpinMode": true, IPAM}`}}},
		{name: "bridge layer 2", network: network{plugins: []string{`{"type": "bridge", "bridge": "cni0"}`},
			faults: []fault{{"bridge", "CHECK", "no plugin name provided"}}}, families: []string{"dual"}},
		{name: "ptp", network: network{plugins: []string{`{"type": "ptp", IPAM}`}}},
		{name: "macvlan", network: network{prepare: uplink, plugins: []string{`{"type": "macvlan", "master": "up0", "mode": "bridge", IPAM}`}}},
		{name: "macvlan layer 2", network: network{prepare: uplink, plugins: []string{`{"type": "macvlan", "master": "up0", "mode": "private", "mtu": 1400}`}},
			families: []string{"dual"}},
		{name: "host-device", network: network{prepare: device, plugins: []string{`{"type": "host-device", "device": "up0", IPAM}`},
			faults: []fault{{"host-device", "DEL again", "Link not found"}}}},
		{name: "host-device layer 2", network: network{prepare: device, plugins: []string{`{"type": "host-device", "device": "up0"}`},
			faults: []fault{{"host-device", "DEL again", "Link not found"}}},
			families: []string{"dual"}},
		{name: "flannel", network: network{version: "0.4.0", files: leases(), plugins: []string{`{"type": "flannel", "subnetFile": "STATE/leases/FAMILY",
			"dataDir": "STATE/flannel", "ipam": {"dataDir": "STATE/ipam"}, "delegate": {"hairpinMode": true, "isDefaultGateway": true}}`}}},
		{name: "flannel with ptp", network: network{version: "0.4.0", files: leases(), plugins: []string{`{"type": "flannel", "subnetFile": "STATE/leases/FAMILY",
			"dataDir": "STATE/flannel", "ipam": {"dataDir": "STATE/ipam"}, "delegate": {"type": "ptp", "mtu": 1400}}`}}, families: []string{"dual"}},
		{name: "tuning", network: network{plugins: []string{plainBridge, tuningConf}}},
		{name: "bandwidth", network: network{plugins: []string{plainBridge, bandwidthConf}}},
		{name: "everything", network: network{plugins: []string{plainBridge, tuningConf, bandwidthConf}}},
	}
}

// fill replaces the placeholders in a plugin's configuration.
func fill(conf, family string) string {
	return strings.NewReplacer("IPAM", hostLocal(family), "STATIC", static(family), "FAMILY", family).Replace(conf)
}

// cases returns the templates with every family.
func cases() []matrixCase {
	var all []matrixCase
	for _, t := range templates() {
		if t.families == nil {
			t.families = families()
		}
		for _, family := range t.families {
			c := matrixCase{name: t.name + " " + family, family: family, network: t.network}
			c.network.plugins = nil
			for _, p := range t.network.plugins {
				c.network.plugins = append(c.network.plugins, fill(p, family))
			}
			all = append(all, c)
		}
	}
	return all
}
