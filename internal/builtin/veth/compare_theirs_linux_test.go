package veth_test

import (
	"context"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// TestRepairAttachmentsOfTheReferencePlugins: their configuration and result are
// the same, and nobody knows the backend if none is named. Without a
// runtime nobody notes that they made the bridge, so it is not made again.
func TestRepairAttachmentsOfTheReferencePlugins(t *testing.T) {
	const masquerading = `"ipMasq": true, `
	for _, test := range []struct {
		name, typ, conf, script string
		want, left              string
	}{
		{"healthy", "bridge", `"isGateway": true, ` + masquerading + staticDual, ":", ``, ``},
		{"off the bridge", "bridge", `"isGateway": true, "hairpinMode": true, ` + staticDual, "ip link set VETH nomaster", `bridge host bridge port "vethX": wanted "cni0", found ""; fix`, ``},
		{"the host's end is down", "bridge", `"isGateway": true, ` + staticDual, "ip link set VETH down", `bridge host interface "vethX": wanted "up", found "down"; fix`, ``},
		{"the bridge is down", "bridge", `"isGateway": true, ` + static4GW, "ip link set cni0 down", `bridge host bridge "cni0": wanted "up", found "down"; ` + unknown,
			`bridge host bridge "cni0": wanted "up", found "down"; ` + unknown},
		{"healthy", "ptp", masquerading + staticDual, ":", ``, ``},
		{"the route is gone", "ptp", staticDual, "ip route del 10.1.0.2", `ptp host route "10.1.0.2/32 on vethX": wanted "10.1.0.2/32", found ""; fix`, ``},
		{"the host's end is down", "ptp", static4GW, "ip link set VETH down", `ptp host interface "vethX": wanted "up", found "down"; fix`, ``},
	} {
		t.Run(test.typ+"/"+test.name, func(t *testing.T) {
			h := newHost(t)
			path := h.path("c1")
			container := h.namespace("c1")
			theirs := plugintest.Theirs(t, h.ns)
			c := plugintest.Call{Type: test.typ, ID: "id-c1", IfName: ifName, NetNS: path,
				Config: `{"cniVersion": "1.0.0", "name": "net", "type": "` + test.typ + `", ` + test.conf + `}`}
			c.Prev = theirs.Must(t, "ADD", c)
			before := plugintest.State(t, h.ns)
			inside := plugintest.State(t, container)
			h.sh(strings.ReplaceAll(test.script, "VETH", h.hostEnd(c.Prev)))
			ctx := contract.With(t.Context(), contract.Given{Filters: netfilter.Options{Executable: true}})
			err := plugintest.Comparing(ctx, h.ns, builtin.New(), c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
				v, done, err := contract.Kernel(ctx, r)
				if err != nil {
					return err
				}
				all, err := p.Compare(ctx, r, v)
				expect.NoError(t, err)
				expect.Same(t, "differences", h.normal(plugintest.Short(all)), test.want)
				all, err = plugintest.Repair(ctx, r, p, v, false)
				expect.NoError(t, err)
				expect.Same(t, "what is left", h.normal(plugintest.Short(all)), test.left)
				return done()
			})
			expect.NoError(t, err)
			expect.Same(t, "the container", plugintest.State(t, container), inside)
			if test.left != "" {
				return
			}
			theirs.Must(t, "CHECK", c)
			gained, lost := lineDiff(before, plugintest.State(t, h.ns))
			for _, l := range append(gained, lost...) {
				if !strings.HasPrefix(l, "cni0: <") { // a carrier that comes later
					t.Errorf("changed on the host: %s", l)
				}
			}
		})
	}
}

// staticDual has routes that the reference plugins' CHECK finds.
const staticDual = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.7"}, {"address": "fd00:1::2/64", "gateway": "fd00:1::7"}],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`

// static4GW is an IPv4 address with its gateway.
const static4GW = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.7"}], "routes": [{"dst": "0.0.0.0/0"}]}`
