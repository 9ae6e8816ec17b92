package builtin_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

var anyMAC = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)

// TestRepairInsideTheContainer: what is gone from interfaces that are no veth
// pairs. Nothing is repaired unless the caller asks for it.
func TestRepairInsideTheContainer(t *testing.T) {
	const static = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::2/64"}], "routes": [{"dst": "0.0.0.0/0"}]}`
	const (
		macvlan = `{"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "master": "up0", ` + static + `}`
		device  = `{"cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "up0", ` + static + `}`
		lo      = `{"cniVersion": "1.0.0", "name": "net", "type": "loopback"}`
	)
	const routes = `TYPE container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
TYPE container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.1", found ""; fix`
	for _, test := range []struct {
		typ, name, conf, script string
		want, left              string // without the errors; left if it is asked for
	}{
		{"macvlan", "down", macvlan, "ip link set eth0 down", `TYPE container interface "eth0": wanted "up", found "down"; fix
TYPE container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
TYPE container route "fd00:1::/64 on eth0": wanted "fd00:1::/64", found ""; fix
TYPE container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.1", found ""; fix`, ""},
		{"macvlan", "address", macvlan, "ip addr del 10.1.0.2/24 dev eth0", `TYPE container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; fix
` + routes, ""},
		{"macvlan", "IPv6 address", macvlan, "ip addr del fd00:1::2/64 dev eth0", `TYPE container address "fd00:1::2/64 on eth0": wanted "fd00:1::2/64", found ""; fix
TYPE container route "fd00:1::/64 on eth0": wanted "fd00:1::/64", found ""; fix`, ""},
		{"macvlan", "routes", macvlan, "ip route flush dev eth0", routes, ""},
		{"macvlan", "gone", macvlan, "ip link del eth0", `TYPE container interface "eth0": wanted "MAC", found ""; no fix: it is gone, perhaps with its master: a new one needs Remove and Setup`,
			`TYPE container interface "eth0": wanted "MAC", found ""; no fix: it is gone, perhaps with its master: a new one needs Remove and Setup`},
		{"macvlan", "mode", macvlan, "ip link set eth0 type macvlan mode private; ip addr del 10.1.0.2/24 dev eth0; ip route add default dev lo; ip route add 10.1.0.0/24 dev lo",
			`TYPE container interface "eth0": wanted "mode bridge", found "mode private"; no fix: it differs, and may be another interface
TYPE container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; no fix: the interface may be another one`,
			`TYPE container interface "eth0": wanted "mode bridge", found "mode private"; no fix: it differs, and may be another interface
TYPE container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; no fix: the interface may be another one`},
		{"macvlan", "a VPN", macvlan, "ip link add tun9 type veth peer name tun8; ip link set tun9 up; ip route replace default dev tun9", "", ""},
		{"host-device", "down", device, "ip link set eth0 down", `TYPE container interface "eth0": wanted "up", found "down"; fix
TYPE container route "10.1.0.0/24 on eth0": wanted "10.1.0.0/24", found ""; fix
TYPE container route "fd00:1::/64 on eth0": wanted "fd00:1::/64", found ""; fix
TYPE container route "0.0.0.0/0 on eth0": wanted "0.0.0.0/0 via 10.1.0.1", found ""; fix`, ""},
		{"host-device", "address", device, "ip addr del 10.1.0.2/24 dev eth0", `TYPE container address "10.1.0.2/24 on eth0": wanted "10.1.0.2/24", found ""; fix
` + routes, ""},
		{"host-device", "renamed", device, "ip link set eth0 down; ip link set eth0 name eth9", `TYPE container interface "eth0": wanted "MAC", found ""; no fix: the device is not in the container: moving it there again needs Remove and Setup`,
			`TYPE container interface "eth0": wanted "MAC", found ""; no fix: the device is not in the container: moving it there again needs Remove and Setup`},
		{"loopback", "down", lo, "ip link set lo down", `TYPE container interface "lo": wanted "up", found "down"; fix`, ""},
	} {
		t.Run(test.typ+"/"+test.name, func(t *testing.T) {
			host, _ := plugintest.NetNS(t)
			lan := plugintest.NewLAN(t)
			lan.Cable(t, host, "up0")
			nettest.SetUp(t, host, "up0")
			container, path := plugintest.NetNS(t)
			c := plugintest.Call{Type: test.typ, ID: "c1", IfName: "eth0", NetNS: path, Config: test.conf}
			c.Prev = plugintest.Ours(host, builtin.New()).Must(t, "ADD", c)
			before := plugintest.State(t, container)
			nettest.Shell(t, container, test.script)
			damaged := plugintest.State(t, container)

			compared := func(do func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) ([]contract.Difference, error)) (text string) {
				ctx := contract.With(t.Context(), contract.Given{})
				err := plugintest.Comparing(ctx, host, builtin.New(), c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
					v, done, err := contract.Kernel(ctx, r)
					if err != nil {
						return err
					}
					all, err := do(ctx, r, p, v)
					text = strings.ReplaceAll(anyMAC.ReplaceAllString(plugintest.Short(all), "MAC"), test.typ+" ", "TYPE ")
					expect.NoError(t, done())
					return err
				})
				expect.NoError(t, err)
				return text
			}
			repair := func(inside bool) string {
				return compared(func(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View) ([]contract.Difference, error) {
					return plugintest.Repair(ctx, r, p, v, inside)
				})
			}
			expect.Same(t, "differences, and nobody asks for a repair", repair(false), test.want)
			expect.Same(t, "the container", plugintest.State(t, container), damaged)
			expect.Same(t, "what is left", repair(true), test.left)
			if test.left != "" || test.want == "" {
				expect.Same(t, "the container", plugintest.State(t, container), damaged)
				return
			}
			awaitState(t, func() string { return plugintest.State(t, container) }, before)
		})
	}
}

// awaitState waits until the kernel has finished its work on addresses.
func awaitState(t *testing.T, state func() string, want string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(expect.Patience)
	for now := state(); now != want; now = state() {
		if time.Now().After(deadline) {
			gained, lost := audit.Diff(audit.Lines(strings.Split(want, "\n")), audit.Lines(strings.Split(now, "\n")))
			expect.Unchanged(t, "the container", gained, lost)
			return
		}
		<-tick.C
	}
}
