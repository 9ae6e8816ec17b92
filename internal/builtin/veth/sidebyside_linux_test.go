package veth_test

import (
	"strings"
	"testing"
)

// Addresses for configurations. The gateway is last, so that it can be omitted.
const (
	static4    = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}`
	static6    = `"ipam": {"type": "static", "addresses": [{"address": "fd00:1::2/64"}]}`
	staticDual = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]}`
	staticGW   = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.7"}, {"address": "fd00:1::2/64", "gateway": "fd00:1::7"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.0.9", "priority": 50},
			{"dst": "10.8.0.0/16", "table": 300}, {"dst": "10.9.0.0/16", "scope": 0}],
		"dns": {"nameservers": ["10.1.0.53"], "search": ["a.example"]}}`
	hostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	hostLocalPlain = `"ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}`
)

// side is one configuration that is tried side by side.
type side struct {
	name, typ, conf, args string
	version               string // default 1.0.0
	before                string // script that runs on the host
	// blind: the reference plugin's CHECK needs IPAM, and does not find routes
	// of other tables.
	blind bool
}

var sides = []side{
	{name: "a bridge without addresses", typ: "bridge", blind: true},
	{name: "a container's end that stays down", typ: "bridge", conf: `"disableContainerInterface": true`, blind: true},
	{name: "IPv4", typ: "bridge", conf: static4},
	{name: "IPv6", typ: "bridge", conf: static6},
	{name: "gateway IPv4", typ: "bridge", conf: `"isGateway": true, ` + static4},
	{name: "gateway IPv6", typ: "bridge", conf: `"isGateway": true, ` + static6},
	{name: "default gateway", typ: "bridge", conf: `"isDefaultGateway": true, ` + staticDual},
	{name: "gateways and routes that are given", typ: "bridge", conf: `"isGateway": true, ` + staticGW, blind: true},
	{name: "host-local", typ: "bridge", conf: `"isGateway": true, ` + hostLocal},
	{name: "host-local, default gateway", typ: "bridge", conf: `"isDefaultGateway": true, ` + hostLocalPlain},
	{name: "old version", typ: "bridge", conf: `"isDefaultGateway": true, ` + staticDual, version: "0.4.0"},
	{name: "newest version", typ: "bridge", conf: `"isDefaultGateway": true, ` + staticDual, version: "1.1.0"},
	{name: "another bridge with an MTU", typ: "bridge", conf: `"bridge": "br.one", "mtu": 1400, "isGateway": true, ` + staticDual},
	{name: "hairpin", typ: "bridge", conf: `"hairpinMode": true, ` + static4},
	{name: "promiscuous", typ: "bridge", conf: `"promiscMode": true, ` + static4},
	{name: "isolated", typ: "bridge", conf: `"portIsolation": true, ` + static4},
	{name: "no spoofing of MACs", typ: "bridge", conf: `"macspoofchk": true, ` + static4},
	{name: "MAC of the runtime", typ: "bridge", args: "IgnoreUnknown=1;MAC=02:00:00:00:00:01",
		conf: `"runtimeConfig": {"mac": "` + fixedMAC + `"}, "args": {"cni": {"mac": "02:00:00:00:00:02"}}, ` + static4},
	{name: "MAC of the arguments", typ: "bridge", args: "IgnoreUnknown=1;MAC=02:00:00:00:00:01", conf: `"args": {"cni": {"mac": "` + fixedMAC + `"}}, ` + static4},
	{name: "MAC of CNI_ARGS", typ: "bridge", args: "IgnoreUnknown=1;MAC=" + fixedMAC, conf: static4},
	{name: "DNS", typ: "bridge", conf: `"dns": {"domain": "example", "options": ["ndots:2"]}, ` + staticGW, blind: true},
	{name: "a bridge that is there", typ: "bridge", conf: `"isGateway": true, ` + staticDual,
		before: "ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.1.0.1/24 dev cni0; ip addr add fd00:9::1/64 dev cni0 nodad"},
	{name: "a bridge with another address", typ: "bridge", conf: `"isGateway": true, "forceAddress": true, ` + staticDual,
		before: "ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.2.0.1/24 dev cni0; ip addr add fd00:1::9/64 dev cni0 nodad"},
	{name: "detection of duplicates", typ: "bridge", conf: `"isGateway": true, "enabledad": true, ` + staticDual},
	{name: "ptp", typ: "ptp", conf: staticGW, blind: true},
	{name: "ptp, host-local", typ: "ptp", conf: hostLocal},
	{name: "ptp, IPv4, an MTU", typ: "ptp", conf: `"mtu": 1300, "ipam": {"type": "host-local", "dataDir": "DIR/ipam", "subnet": "10.1.0.0/24"}`},
	{name: "ptp, IPv6, DNS", typ: "ptp", conf: `"dns": {"nameservers": ["fd00:1::53"]}, "ipam": {"type": "host-local", "dataDir": "DIR/ipam", "subnet": "fd00:1::/64"}`},
	{name: "ptp, old version", typ: "ptp", conf: hostLocal, version: "0.4.0"},
}

func (s side) call() call {
	version := s.version
	if version == "" {
		version = "1.0.0"
	}
	conf := `{"cniVersion": "` + version + `", "name": "net", "type": "` + s.typ + `"`
	if s.conf != "" {
		conf += ", " + s.conf
	}
	return call{typ: s.typ, id: "c1", args: s.args, conf: conf + "}"}
}

// TestSideBySide: ours and theirs add the same, in the result and in the
// kernel. Theirs checks and deletes ours, and the other way round.
func TestSideBySide(t *testing.T) {
	for _, s := range sides {
		t.Run(s.name, func(t *testing.T) {
			us, them := newHost(t), newHost(t)
			c := s.call()
			for _, h := range []*host{us, them} {
				h.namespace(c.id)
				if s.before != "" {
					h.sh(s.before)
				}
			}
			// Otherwise theirs takes seconds, which distinguishes it from ours.
			them.in(c.id, "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
			them.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad")
			cleanUs, cleanThem := us.snapshot(), them.snapshot()

			added, want := us.must(ours, "ADD", c), them.must(theirs, "ADD", c)
			if got, want := us.result(added), them.result(want); got != want {
				t.Errorf("results:\n%s", diff(got, want))
			}
			if got, want := us.kernel(c.id), them.kernel(c.id); got != want {
				t.Errorf("kernel:\n%s", diff(got, want))
			}
			c.prev = added
			us.must(ours, "CHECK", c)
			if !s.blind {
				us.must(theirs, "CHECK", c)
			}
			us.must(theirs, "DEL", c)
			c.prev = want
			them.must(ours, "CHECK", c)
			them.must(ours, "DEL", c)
			if !strings.Contains(s.before, "addr add 10.2") { // which forceAddress removes
				us.wantClean(cleanUs)
				them.wantClean(cleanThem)
			}
			us.must(ours, "DEL", c)
			c.prev = nil
			us.must(ours, "DEL", c)
		})
	}
}
