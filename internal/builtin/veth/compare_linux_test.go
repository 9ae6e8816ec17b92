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
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/views"
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
	out, err := h.run(one.context(), "ADD", one.c)
	expect.NoError(h.t, err)
	one.c.prev = out
	return one
}

func (a *attached) context() context.Context {
	return caller.With(a.h.t.Context(), caller.Given{Record: a.memory})
}

// compare calls do with the request of a CHECK, and the kernel as a view.
func (a *attached) compare(do func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error) {
	a.h.t.Helper()
	expect.NoError(a.h.t, a.tryCompare(do))
}

func (a *attached) tryCompare(do func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error) error {
	c := plugintest.Call{Type: a.c.typ, ID: "id-" + a.c.id, IfName: ifName, NetNS: a.h.path(a.c.id), Config: a.h.expand(a.c.conf), Prev: a.c.prev}
	return plugintest.Comparing(a.context(), a.h.ns, builtin.Lookup, c, func(ctx context.Context, r *plugin.Request, p compare.Comparer) error {
		v, done, err := compare.Kernel(ctx, r)
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

// differences returns the differences, as lines. They are the same if everything
// is read once, before.
func (a *attached) differences() (text string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error {
		all, err := p.Compare(ctx, r, v)
		text = a.h.normal(plugintest.Lines(all))
		dump := *v
		dump.Host, dump.Container = expect.Value(views.ReadNamespace(r.Host))(a.h.t), expect.Value(views.ReadNamespace(r.Container))(a.h.t)
		fw := netfilter.Open(r.Host, netfilter.Options{Notes: a.memory})
		dump.Rules = netfilter.Read(fw).For(fw.Options)
		again, failed := p.Compare(ctx, r, &dump)
		expect.Same(a.h.t, "differences of a dump", a.h.normal(plugintest.Lines(again)), text)
		return firstOf(err, failed)
	})
	return text
}

// short returns the differences without errors.
func (a *attached) short() (text string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error {
		all, err := p.Compare(ctx, r, v)
		text = a.h.normal(plugintest.Short(all))
		return err
	})
	return text
}

// repair repairs and returns the differences that remain, without errors.
func (a *attached) repair(inside bool) (left string) {
	a.h.t.Helper()
	a.compare(func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error {
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

// TestRepairMakesAgainWhatIsGone: each kind of damage is found, and repaired so
// that nothing differs from the time before.
func TestRepairMakesAgainWhatIsGone(t *testing.T) {
	tests := []struct {
		side    attaching
		damages []damage // want: the differences without the errors of CHECK
	}{
		{attaching{name: "bridge", typ: "bridge", conf: `"isGateway": true, "mtu": 1400, "ipMasq": true, ` + staticGW}, []damage{
			{"the rules are gone", "host", "nft flush ruleset", ``},
			{"the container's end is down", "container", "ip link set eth0 down",
				`bridge container interface "eth0": wanted "up", found "down"; fix
bridge container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
bridge container route "fd00:1::/64 on eth0": wanted "fd00:1::/64", found ""; fix
bridge container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.7", found ""; fix
bridge container route "::/0 on eth0": wanted "::/0 via fd00:1::7", found ""; fix
bridge container route "10.7.0.0/16 on eth0": wanted "10.7.0.0/16 via 10.1.0.9", found ""; fix
bridge container route "10.8.0.0/16 on eth0": wanted "10.8.0.0/16 via 10.1.0.7 table 300", found ""; fix
bridge container route "10.9.0.0/16 on eth0": wanted "10.9.0.0/16 via 10.1.0.7", found ""; fix`},
			{"the host's end is down", "host", "ip link set VETH down", `bridge host interface "vethX": wanted "up", found "down"; fix`},
			{"the host's end is off the bridge", "host", "ip link set VETH nomaster", `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
			{"the bridge is gone", "host", "ip link del cni0",
				`bridge host bridge "cni0": wanted "MAC", found ""; fix
bridge host bridge port "vethX": wanted "cni0", found ""; fix
bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{"the bridge is down", "host", "ip link set cni0 down",
				`bridge host bridge "cni0": wanted "up", found "down"; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{"the bridge lost its addresses", "host", "ip addr flush dev cni0 scope global",
				`bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; fix`},
			{"the host's routes are gone", "host", "ip route flush table main; ip -6 route flush dev cni0",
				`bridge host route "10.1.0.0/24 on cni0": wanted "10.1.0.0/24", found ""; fix
bridge host route "fd00:1::/64 on cni0": wanted "fd00:1::/64", found ""; fix`},
			{"the IPv4 address is gone", "container", "ip addr del 10.1.0.2/24 dev eth0",
				`bridge container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; fix
bridge container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
bridge container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.7", found ""; fix
bridge container route "10.7.0.0/16 on eth0": wanted "10.7.0.0/16 via 10.1.0.9", found ""; fix
bridge container route "10.8.0.0/16 on eth0": wanted "10.8.0.0/16 via 10.1.0.7 table 300", found ""; fix
bridge container route "10.9.0.0/16 on eth0": wanted "10.9.0.0/16 via 10.1.0.7", found ""; fix`},
			{"the routes are gone", "container", "ip route flush dev eth0; ip -6 route flush dev eth0 proto boot; ip -6 route del fd00:1::/64",
				``},
		}},
		{attaching{name: "spoofing", typ: "bridge", conf: `"macspoofchk": true, ` + static4}, []damage{
			{"no rules", "host", "nft flush ruleset", ``},
			{"no jump", "host", "nft flush chain bridge embedcni spoofing", ``},
		}},
		{attaching{name: "modes", typ: "bridge", conf: `"hairpinMode": true, "portIsolation": true, ` + static4}, []damage{
			{"hairpin", "host", "bridge link set dev VETH hairpin off", `bridge host bridge port "vethX": wanted "hairpin", found ""; fix`},
			{"isolated", "host", "bridge link set dev VETH isolated off", `bridge host bridge port "vethX": wanted "isolated", found ""; fix`},
			{"off the bridge", "host", "ip link set VETH nomaster", `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
		}},
		{attaching{name: "promiscuous", typ: "bridge", conf: `"promiscMode": true, ` + static4}, []damage{
			{"not set", "host", "ip link set cni0 promisc off", `bridge host bridge "cni0": wanted "promiscuous", found ""; fix`},
		}},
		{attaching{name: "vlan", typ: "bridge", conf: `"isGateway": true, "vlan": 100, "vlanTrunk": [{"minID": 200, "maxID": 202}], ` + staticGW}, []damage{
			{"off the bridge", "host", "ip link set VETH nomaster", `bridge host bridge port "vethX": wanted "cni0", found ""; fix`},
			{"the bridge is gone", "host", "ip link del cni0", ``},
			{"the gateway is down", "host", "ip link set cni0.100 down", ``},
			{"the gateway is gone", "host", "ip link del cni0.100",
				`bridge host interface "cni0.100": wanted "MAC", found ""; fix
bridge host address "10.1.0.7/24 on cni0.100": wanted "10.1.0.7/24", found ""; fix
bridge host address "fd00:1::7/64 on cni0.100": wanted "fd00:1::7/64", found ""; fix`},
		}},
		{attaching{name: "ptp", typ: "ptp", conf: `"ipMasq": true, ` + staticGW}, []damage{
			{"the container's end is down", "container", "ip link set eth0 down", ``},
			{"the IPv4 address is gone", "container", "ip addr del 10.1.0.2/24 dev eth0", ``},
			{"the IPv6 address is gone", "container", "ip addr del fd00:1::2/64 dev eth0", ``},
			{"the routes are gone", "container", "ip route flush dev eth0; ip -6 route flush dev eth0 proto boot", ``},
			{"the host's end is down", "host", "ip link set VETH down",
				`ptp host interface "vethX": wanted "up", found "down"; fix
ptp host address "fd00:1::7/128 on vethX": wanted "fd00:1::7/128", found ""; fix
ptp host route "fd00:1::2/128 on vethX": wanted "fd00:1::2/128", found ""; fix`},
			{"the host's routes are gone", "host", "ip route del 10.1.0.2/32; ip -6 route del fd00:1::2/128",
				`ptp host route "10.1.0.2/32 on vethX": wanted "10.1.0.2/32", found ""; fix
ptp host route "fd00:1::2/128 on vethX": wanted "fd00:1::2/128", found ""; fix`},
			{"the host's addresses are gone", "host", "ip addr flush dev VETH scope global",
				`ptp host address "10.1.0.7/32 on vethX": wanted "10.1.0.7/32", found ""; fix
ptp host route "10.1.0.2/32 on vethX": wanted "10.1.0.2/32", found ""; fix
ptp host address "fd00:1::7/128 on vethX": wanted "fd00:1::7/128", found ""; fix`},
			{"the rules are gone", "host", "nft flush ruleset", ``},
		}},
	}
	for _, test := range tests {
		if test.side.name == "vlan" && !filtersVLANs(t) {
			t.Log("vlan: not here: the kernel was built without BRIDGE_VLAN_FILTERING")
			continue
		}
		for _, d := range test.damages {
			t.Run(test.side.name+"/"+d.name, func(t *testing.T) {
				h := newHost(t)
				a := h.attach(test.side, "c1")
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
				expect.Same(t, "what is left", a.repair(true), "")
				a.wantStates(before)
				h.must("CHECK", a.c)
			})
		}
	}
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
