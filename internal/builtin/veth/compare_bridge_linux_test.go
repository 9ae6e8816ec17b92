package veth_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// routed is a bridge that is the gateway of its containers.
var routed = attaching{typ: "bridge", conf: `"isGateway": true, ` + staticGW}

// numbered is routed with the address of container n.
func numbered(n int) attaching {
	a := routed
	a.conf = strings.NewReplacer("10.1.0.2/24", fmt.Sprintf("10.1.0.%d/24", 10+n), "fd00:1::2/64", fmt.Sprintf("fd00:1::%x/64", 0x10+n)).Replace(a.conf)
	return a
}

// The reasons why a bridge is not made again.
const (
	foreign  = "no fix: the bridge was there before the ADD: it is the host's"
	replaced = "no fix: somebody else replaced the bridge of the ADD: it is the host's"
	unknown  = "no fix: the record does not say whether an ADD made the bridge, so it counts as the host's"
)

// TestRepairLeavesABridgeOfTheHostToTheHost: only the port comes back, and only
// once the bridge is there.
func TestRepairLeavesABridgeOfTheHostToTheHost(t *testing.T) {
	const bridge = "ip link add cni0 type bridge; ip link set cni0 up; "
	for _, test := range []struct{ name, before, script, want string }{
		{"gone", bridge, "ip link del cni0", `bridge host bridge "cni0": wanted "MAC", found ""; ` + foreign + `
bridge host bridge port "vethX": wanted "cni0", found ""; no fix: the bridge is missing
bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; ` + foreign + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + foreign},
		{"down", bridge, "ip link set cni0 down", `bridge host bridge "cni0": wanted "up", found "down"; ` + foreign + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + foreign},
		{"addresses", bridge, "ip addr flush dev cni0 scope global", `bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; ` + foreign + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + foreign},
		{"routes", bridge, "ip route flush table main", `bridge host route "10.1.0.0/24 on cni0": wanted "10.1.0.0/24", found ""; ` + foreign},
		{"a route that leads elsewhere", "", "ip link add vpn type veth peer name vpn9; ip link set vpn up; ip link set vpn9 up; ip route replace 10.1.0.0/24 dev vpn", ``},
		{"port", bridge, "ip link set VETH nomaster", ``},
		{"made anew by another program", "", "ip link del cni0; " + bridge, `bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; ` + replaced + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + replaced},
		{"made anew, and set down", "", "ip link del cni0; " + bridge + "ip link set cni0 down", `bridge host bridge "cni0": wanted "up", found "down"; ` + replaced + `
bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; ` + replaced + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + replaced},
		{"no bridge", "", "ip link del cni0; ip link add cni0 type veth peer name other7", `bridge host bridge "cni0": wanted "bridge", found "veth"; no fix: it differs
bridge host bridge port "vethX": wanted "cni0", found ""; no fix: the bridge is missing
bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found ""; ` + replaced + `
bridge host address "fd00:1::7/64 on cni0": wanted "fd00:1::7/64", found ""; ` + replaced},
		{"on another bridge", "", "ip link add other type bridge; ip link set VETH master other",
			`bridge host bridge port "vethX": wanted "cni0", found "other"; no fix: somebody put it there`},
		{"another address", "", "ip addr add 10.2.0.1/16 dev cni0; ip addr del 10.1.0.7/24 dev cni0",
			`bridge host address "10.1.0.7/24 on cni0": wanted "10.1.0.7/24", found "10.2.0.1/16"; no fix: it differs`},
		{"renamed, with another address", "", "ip link set VETH down; ip link set VETH name nic7; ip link set nic7 address 02:00:00:00:00:42; ip link set nic7 nomaster",
			`bridge host interface "nic7": wanted "up", found "down"; no fix: it has neither the recorded name nor the recorded hardware address, so it may be another pair
bridge host bridge port "nic7": wanted "cni0", found ""; no fix: it has neither the recorded name nor the recorded hardware address, so it may be another pair`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHost(t)
			h.sh(test.before)
			a := h.attach(routed, "c1")
			expect.Same(t, "differences of a healthy container", a.differences(), "")
			h.sh(strings.ReplaceAll(test.script, "VETH", h.hostEnd(a.c.prev)))
			// Interfaces of others on the host and on the bridge.
			h.sh("ip link add other0 type veth peer name other9; ip link set other0 up; ip addr add 192.0.2.1/24 dev other0; ip link add other1 type veth peer name other8; ip link set other1 master cni0 || ip link set other1 up")
			before := plugintest.State(t, h.ns)
			expect.Same(t, "what is left", a.repair(true), test.want)
			gained, lost := lineDiff(before, plugintest.State(t, h.ns))
			if test.want != "" && !strings.Contains(test.name, "made anew") {
				expect.Unchanged(t, "host", gained, lost)
				return
			}
			for _, l := range append(gained, lost...) {
				if !strings.Contains(l, "veth") && !strings.HasPrefix(l, "cni0: <") { // the port came back, and a carrier with it
					t.Errorf("changed: %s", l)
				}
			}
			h.in(a.c.id, "ip link show eth0")
		})
	}
}

// mac returns the hardware address of an interface of the host.
func (h *host) mac(name string) string {
	return nettest.Link(h.t, h.ns, name).Attrs().HardwareAddr.String()
}

// TestAnotherContainerMakesTheBridgeAgain: the container whose ADD made the
// bridge is gone.
func TestAnotherContainerMakesTheBridgeAgain(t *testing.T) {
	h := newHost(t)
	first, second := h.attach(numbered(1), "c1"), h.attach(numbered(2), "c2")
	mac := h.mac("cni0")
	h.must("DEL", first.c)
	h.sh("ip link del cni0")
	expect.Same(t, "what is left", second.repair(false), "")
	expect.Same(t, "hardware address", h.mac("cni0"), mac)
	third := h.attach(numbered(3), "c3")
	h.sh("ip link del cni0")
	expect.Same(t, "what is left", third.repair(false), "")
	expect.Same(t, "hardware address", h.mac("cni0"), mac)
	expect.Same(t, "what is left", second.repair(false), "")
	h.must("CHECK", second.c)
	h.must("CHECK", third.c)
}

// TestABridgeOfTheHostIsNoted as such, and so is one that another program makes under
// the name of ours.
func TestABridgeOfTheHostIsNoted(t *testing.T) {
	h := newHost(t)
	first := h.attach(numbered(1), "c1")
	expect.Same(t, "notes", strings.Join(first.memory.Keys(), " "), "bridge.made")
	h.sh("ip link del cni0; ip link add cni0 type bridge; ip link set cni0 up")
	second := h.attach(numbered(2), "c2")
	expect.Same(t, "notes", strings.Join(second.memory.Keys(), " "), "bridge.hosts")
	h.sh("ip link del cni0")
	if left := second.repair(false); !strings.Contains(left, foreign) {
		t.Errorf("left: %s", left)
	}
	// The first still has the bridge on record.
	expect.Same(t, "what is left", first.repair(false), "")
	expect.Same(t, "what is left", second.repair(false), "")
}

// TestABridgeWithoutANote: attachments of earlier versions have none.
func TestABridgeWithoutANote(t *testing.T) {
	h := newHost(t)
	a := h.attach(routed, "c1")
	a.memory = plugintest.NewMemory()
	h.sh("ip link del cni0")
	if left := a.repair(false); !strings.Contains(left, unknown) {
		t.Errorf("left: %s", left)
	}
	h.sh("! ip link show cni0")
}

// TestAKilledRepairIsCompleted: the bridge exists, but without its alias, address
// and state.
func TestAKilledRepairIsCompleted(t *testing.T) {
	h := newHost(t)
	a := h.attach(routed, "c1")
	before := a.states()
	mac := h.mac("cni0")
	h.sh("ip link del cni0; ip link add cni0 address " + mac + " mtu 1500 type bridge")
	expect.Same(t, "what is left", a.repair(false), "")
	a.wantStates(before)
}

// TestManyRepairOneBridge: a hundred containers find their bridge gone at once.
func TestManyRepairOneBridge(t *testing.T) {
	const many = 100
	h := newHost(t)
	var all []*attached
	for n := range many {
		all = append(all, h.attach(numbered(n), fmt.Sprint("c", n)))
	}
	mac := h.mac("cni0")
	h.sh("ip link del cni0")
	var wg sync.WaitGroup
	errs := make([]error, many)
	left := make([]string, many)
	for n, a := range all {
		wg.Go(func() {
			errs[n] = a.tryCompare(func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) error {
				all, err := plugintest.Repair(ctx, r, p, v, false)
				left[n] = plugintest.Lines(all)
				return err
			})
		})
	}
	wg.Wait()
	expect.NoError(t, errs...)
	for n, a := range all {
		expect.Same(t, fmt.Sprint("what is left of ", n), left[n], "")
		h.must("CHECK", a.c)
	}
	expect.Same(t, "hardware address", h.mac("cni0"), mac)
}

// TestForwardingIsTheHosts: if it is off, that is reported, CHECK passes, and it
// stays off.
func TestForwardingIsTheHosts(t *testing.T) {
	for _, typ := range []string{"bridge", "ptp"} {
		t.Run(typ, func(t *testing.T) {
			h := newHost(t)
			side := routed
			side.typ = typ
			a := h.attach(side, "c1")
			h.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
			name := "cni0"
			if typ == "ptp" {
				name = "vethX"
			}
			want := typ + ` host sysctl "net/ipv4/conf/` + name + `/forwarding": wanted "1", found "0"; no fix: the setting is the host's
` + typ + ` host sysctl "net/ipv6/conf/all/forwarding": wanted "1", found "0"; no fix: the setting is the host's`
			expect.Same(t, "what is left", a.repair(true), want)
			h.must("CHECK", a.c)
			h.sh("test $(sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding | tr -d '\\n') = 00")
			// IPv6 is forwarded whatever an interface's own setting is.
			h.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; for f in /proc/sys/net/ipv6/conf/*/forwarding; do case $f in */all/*|*/lo/*) ;; *) echo 0 > $f;; esac; done")
			expect.Same(t, "differences", a.differences(), "")
		})
	}
}
