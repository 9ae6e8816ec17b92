package veth_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// attached is a container with its record.
type attached struct {
	h      *host
	c      call
	memory *plugintest.Memory
}

// attach runs an ADD with a record.
func (h *host) attach(a attaching, id string) *attached {
	h.t.Helper()
	one := &attached{h: h, c: a.call(), memory: plugintest.NewMemory()}
	one.c.id = id
	h.namespace(id)
	out := expect.Value(h.run(one.context(), "ADD", one.c))(h.t)
	one.c.prev = out
	return one
}

func (a *attached) context() context.Context {
	return contract.With(a.h.t.Context(), contract.Given{Record: a.memory})
}

// compare calls do with the request of a CHECK, and the kernel as a view.
func (a *attached) compare(do func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error) {
	a.h.t.Helper()
	expect.NoError(a.h.t, a.tryCompare(do))
}

func (a *attached) tryCompare(do func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error) error {
	c := plugintest.Call{Type: a.c.typ, ID: "id-" + a.c.id, IfName: ifName, NetNS: a.h.path(a.c.id), Config: a.h.expand(a.c.conf), Prev: a.c.prev}
	return plugintest.Comparing(a.context(), a.h.ns, builtin.New(), c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
		v, done, err := contract.Kernel(ctx, r)
		if err != nil {
			return err
		}
		return firstOf(do(ctx, r, p, v), done())
	})
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// differences returns the differences, as lines. They are the same if the host is asked
// once about what containers share.
func (a *attached) differences() (text string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error {
		all, err := p.Compare(ctx, r, v)
		text = a.h.normal(plugintest.Lines(all))
		looks := contract.Dumps()
		dump := expect.Value(looks.Open(nil, r.Host, r.Container))(a.h.t)
		again, failed := p.Compare(ctx, r, dump.For(netfilter.Options{Notes: a.memory}))
		expect.Same(a.h.t, "differences of a dump", a.h.normal(plugintest.Lines(again)), text)
		return firstOf(err, failed, dump.Close(), looks.Close())
	})
	return text
}

// short returns the differences without errors.
func (a *attached) short() (text string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error {
		all, err := p.Compare(ctx, r, v)
		text = a.h.normal(plugintest.Short(all))
		return err
	})
	return text
}

// repair repairs and returns the differences that remain, without errors.
func (a *attached) repair(inside bool) (left string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error {
		all, err := plugintest.Repair(ctx, r, p, v, inside)
		left = a.h.normal(plugintest.Short(all))
		return err
	})
	return left
}

func (a *attached) states() [2]string {
	a.h.t.Helper()
	ns := a.h.open(a.c.id)
	defer ns.Close()
	return [2]string{plugintest.State(a.h.t, a.h.ns), plugintest.State(a.h.t, ns)}
}

// wantStates waits until host and container are as before: the kernel finishes
// its work on addresses later.
func (a *attached) wantStates(before [2]string) {
	a.h.t.Helper()
	var now [2]string
	if !eventually(a.h.t, func() bool { now = a.states(); return now == before }) {
		for i, where := range []string{"host", "container"} {
			gained, lost := lineDiff(before[i], now[i])
			expect.Unchanged(a.h.t, where, gained, lost)
		}
	}
}

// damage is something that happens to an attachment.
type damage struct {
	name   string
	where  string // "host" or "container"
	script string // VETH is the host's end
	check  string // the error of CHECK; empty: any
	want   string // the differences without the errors of CHECK; empty: any
	after  string // "stays": it is not repaired; "differs": there is more than before
}

// TestDamageIsFoundAndRepaired: CHECK reports each kind of damage, and unless somebody
// else has a hand in it, it is repaired so that nothing differs from the time before.
func TestDamageIsFoundAndRepaired(t *testing.T) {
	tests := []struct {
		side    attaching
		damages []damage
	}{
		{attaching{name: "bridge", typ: "bridge", conf: `"isGateway": true, "mtu": 1400, "ipMasq": true, ` + staticGW}, []damage{
			{name: "the rules are gone", where: "host", script: "nft flush ruleset"},
			{name: "the container's end is gone", where: "container", script: "ip link del eth0", after: "stays",
				check: `in the container: interface "eth0": no such device`},
			{name: "the container's end is another's", where: "container", script: "ip link del eth0; ip link add eth0 type bridge; ip link set eth0 up", after: "stays",
				check: `interface "eth0" in the container: it is not a veth interface, but "bridge"`},
			{name: "the container's end is down", where: "container", script: "ip link set eth0 down", check: `interface "eth0" in the container: it is down`,
				want: `bridge container interface "eth0": wanted "up", found "down"; fix
bridge container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
bridge container route "fd00:1::/64 on eth0": wanted "fd00:1::/64", found ""; fix
bridge container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.7", found ""; fix
bridge container route "::/0 on eth0": wanted "::/0 via fd00:1::7", found ""; fix
bridge container route "10.7.0.0/16 on eth0": wanted "10.7.0.0/16 via 10.1.0.9", found ""; fix
bridge container route "10.8.0.0/16 on eth0": wanted "10.8.0.0/16 via 10.1.0.7 table 300", found ""; fix
bridge container route "10.9.0.0/16 on eth0": wanted "10.9.0.0/16 via 10.1.0.7", found ""; fix`},
			{name: "its MAC is another", where: "container", script: "ip link set eth0 address 02:00:00:00:00:42", after: "stays",
				check: `interface "eth0" in the container: its MAC address is 02:00:00:00:00:42, not MAC`},
			{name: "the host's end is down", where: "host", script: "ip link set VETH down", check: `interface "vethX" on the host: it is down`,
				want: `bridge host interface "vethX": wanted "up", found "down"; fix`},
			{name: "the host's end is off the bridge", where: "host", script: "ip link set VETH nomaster", check: `interface "vethX" is not on bridge "cni0"`,
				want: `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
			{name: "the host's end is on another bridge", where: "host", script: "ip link add other type bridge; ip link set VETH master other", after: "stays",
				check: `interface "vethX" is not on bridge "cni0"`},
			{name: "the bridge is gone", where: "host", script: "ip link del cni0", check: `bridge: interface "cni0": no such device`,
				want: `bridge host bridge "cni0": wanted "MAC", found ""; fix
bridge host bridge port "vethX": wanted "cni0", found ""; fix
bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{name: "the bridge is no bridge", where: "host", script: "ip link del cni0; ip link add cni0 type veth peer name x", after: "stays",
				check: `interface "cni0" is not a bridge, but "veth"`},
			{name: "the bridge is down", where: "host", script: "ip link set cni0 down", check: `bridge "cni0" is down`,
				want: `bridge host bridge "cni0": wanted "up", found "down"; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{name: "the bridge lost its addresses", where: "host", script: "ip addr flush dev cni0 scope global", check: `interface "cni0" lacks the gateway's address 10.1.0.7/24`,
				want: `bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{name: "the host's routes are gone", where: "host", script: "ip route flush table main; ip -6 route flush dev cni0",
				want: `bridge host route "10.1.0.0/24 on cni0": wanted "10.1.0.0/24", found ""; fix
bridge host route "fd00:1::/64 on cni0": wanted "fd00:1::/64", found ""; fix`},
			{name: "the IPv4 address is gone", where: "container", script: "ip addr del 10.1.0.2/24 dev eth0", check: `interface "eth0" in the container: address 10.1.0.2/24 is missing`,
				want: `bridge container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; fix
bridge container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
bridge container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.7", found ""; fix
bridge container route "10.7.0.0/16 on eth0": wanted "10.7.0.0/16 via 10.1.0.9", found ""; fix
bridge container route "10.8.0.0/16 on eth0": wanted "10.8.0.0/16 via 10.1.0.7 table 300", found ""; fix
bridge container route "10.9.0.0/16 on eth0": wanted "10.9.0.0/16 via 10.1.0.7", found ""; fix`},
			{name: "the length is another", where: "container", after: "stays",
				script: "ip addr add 10.1.0.2/25 dev eth0; ip addr del 10.1.0.2/24 dev eth0; ip route replace 10.1.0.0/24 dev eth0",
				check:  `interface "eth0" in the container: address 10.1.0.2/24 is missing`},
			{name: "a route is of another table", where: "container", script: "ip route del 10.8.0.0/16 table 300; ip route add 10.8.0.0/16 via 10.1.0.7", after: "differs",
				check: `interface "eth0" in the container: route 10.8.0.0/16 via 10.1.0.7 is missing`},
			{name: "the routes are gone", where: "container", script: "ip route flush dev eth0; ip -6 route flush dev eth0 proto boot; ip -6 route del fd00:1::/64",
				check: `interface "eth0" in the container: route 10.1.0.0/24 is missing`},
		}},
		{attaching{name: "forced", typ: "bridge", conf: `"isGateway": true, "forceAddress": true, ` + staticGW}, []damage{
			{name: "no address", where: "host", script: "ip addr flush dev cni0 scope global", check: `interface "cni0" lacks the gateway's address 10.1.0.7/24`},
		}},
		{attaching{name: "spoofing", typ: "bridge", conf: `"macspoofchk": true, ` + static4}, []damage{
			{name: "no rules", where: "host", script: "nft flush ruleset", check: `"macspoofchk": nftables: set bridge embedcni ports is missing`},
			{name: "no jump", where: "host", script: "nft flush chain bridge embedcni spoofing"},
		}},
		{attaching{name: "modes", typ: "bridge", conf: `"hairpinMode": true, "portIsolation": true, ` + static4}, []damage{
			{name: "hairpin", where: "host", script: "bridge link set dev VETH hairpin off", check: `"hairpinMode": interface "vethX" is not in hairpin mode`,
				want: `bridge host bridge port "vethX": wanted "hairpin", found ""; fix`},
			{name: "isolated", where: "host", script: "bridge link set dev VETH isolated off", check: `"portIsolation": interface "vethX" is not isolated`,
				want: `bridge host bridge port "vethX": wanted "isolated", found ""; fix`},
			{name: "off the bridge", where: "host", script: "ip link set VETH nomaster", want: `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
		}},
		{attaching{name: "promiscuous", typ: "bridge", conf: `"promiscMode": true, ` + static4}, []damage{
			{name: "not set", where: "host", script: "ip link set cni0 promisc off", check: `"promiscMode": bridge "cni0" is not in promiscuous mode`,
				want: `bridge host bridge "cni0": wanted "promiscuous", found ""; fix`},
		}},
		{attaching{name: "vlan", typ: "bridge", conf: `"isGateway": true, "vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 202}], ` + staticGW}, []damage{
			{name: "off the bridge", where: "host", script: "ip link set VETH nomaster", want: `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
			{name: "the bridge is gone", where: "host", script: "ip link del cni0"},
			{name: "the gateway is down", where: "host", script: "ip link set cni0.100 down"},
			{name: "the gateway is gone", where: "host", script: "ip link del cni0.100",
				want: `bridge host interface "cni0.100": wanted "MAC", found ""; fix
bridge host address "10.1.0.7/24 on cni0.100": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0.100": wanted "fd00:1::7/64", found ""; fix`},
		}},
		{attaching{name: "ptp", typ: "ptp", conf: `"ipMasq": true, ` + staticGW}, []damage{
			{name: "the container's end is down", where: "container", script: "ip link set eth0 down"},
			{name: "the IPv4 address is gone", where: "container", script: "ip addr del 10.1.0.2/24 dev eth0"},
			{name: "the IPv6 address is gone", where: "container", script: "ip addr del fd00:1::2/64 dev eth0", check: `interface "eth0" in the container: address fd00:1::2/64 is missing`},
			{name: "the routes are gone", where: "container", script: "ip route flush dev eth0; ip -6 route flush dev eth0 proto boot"},
			{name: "the host's end is down", where: "host", script: "ip link set VETH down", check: `interface "vethX" on the host: it is down`,
				want: `ptp host interface "vethX": wanted "up", found "down"; fix
ptp host address "fd00:1::7/128 on vethX": wanted "fd00:1::7/128", found ""; fix
ptp host route "fd00:1::2/128 on vethX": wanted "fd00:1::2/128", found ""; fix`},
			{name: "the host's end is another's", where: "host", after: "differs",
				script: "M=$(ip -br link show VETH | awk '{print $3}'); ip link set VETH down; ip link set VETH name other; ip link add VETH address $M type veth peer name x; ip link set VETH up; ip link set x up",
				check:  `interface "other" on the host: it is down`},
			{name: "the host's routes are gone", where: "host", script: "ip route del 10.1.0.2/32; ip -6 route del fd00:1::2/128", check: `interface "vethX" on the host: route 10.1.0.2/32 is missing`,
				want: `ptp host route "10.1.0.2/32 on vethX": wanted "10.1.0.2/32", found ""; fix
ptp host route "fd00:1::2/128 on vethX": wanted "fd00:1::2/128", found ""; fix`},
			{name: "the host's addresses are gone", where: "host", script: "ip addr flush dev VETH scope global", check: `interface "vethX" on the host: the gateway's address 10.1.0.7 is missing`,
				want: `ptp host address "10.1.0.7/32 on vethX": wanted "10.1.0.7/32", found ""; fix
ptp host route "10.1.0.2/32 on vethX": wanted "10.1.0.2/32", found ""; fix
ptp host address "fd00:1::7/128 on vethX": wanted "fd00:1::7/128", found ""; fix`},
			{name: "the rules are gone", where: "host", script: "nft flush ruleset"},
		}},
	}
	for _, test := range tests {
		if test.side.name == "vlan" && !filtersVLANs(t) {
			t.Log("vlan: not here: the kernel was built without BRIDGE_VLAN_FILTERING")
			continue
		}
		for _, d := range test.damages {
			t.Run(test.side.name+"/"+d.name, func(t *testing.T) { d.happens(newHost(t), test.side) })
		}
	}
}

func (d damage) happens(h *host, side attaching) {
	t := h.t
	a := h.attach(side, "c1")
	expect.Same(t, "differences of a healthy container", a.differences(), "")
	before := a.states()
	script := strings.ReplaceAll(d.script, "VETH", h.hostEnd(a.c.prev))
	if d.where == "host" {
		h.sh(script)
	} else {
		h.in(a.c.id, script)
	}
	found := a.differences()
	switch {
	case d.want != "":
		expect.Same(t, "differences", a.short(), d.want)
	case found == "":
		t.Error("there is no difference")
	}
	if d.check != "" {
		h.mustFail("CHECK", a.c, d.check)
	}
	switch left := a.repair(true); {
	case d.after == "stays":
		if left == "" {
			t.Error("nothing is left")
		}
	default:
		expect.Same(t, "what is left", left, "")
		if d.after == "" {
			a.wantStates(before)
		}
		h.must("CHECK", a.c)
	}
	h.must("DEL", a.c)
}

// hostEnd returns the name of the host's end in a result.
func (h *host) hostEnd(result []byte) string {
	h.t.Helper()
	r := expect.Value(plugintest.Result(result))(h.t)
	return veth.HostInterface(r, ifName).Name
}

// filtersVLANs reports whether the kernel's bridges can filter VLANs.
func filtersVLANs(t *testing.T) bool {
	t.Helper()
	return nettest.New(t).Do(exec.Command("ip", "link", "add", "type", "bridge", "vlan_filtering", "1").Run) == nil
}

// settleTime is longer than the kernel's deferred work takes.
const settleTime = 10 * time.Second

func eventually(t testing.TB, holds func() bool) bool {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(settleTime); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func lineDiff(before, after string) (gained, lost []string) {
	return audit.Diff(audit.Lines(strings.Split(before, "\n")), audit.Lines(strings.Split(after, "\n")))
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
