package bandwidth

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

func ours(h plugintest.Host) plugintest.Side {
	return plugintest.Ours(h.Host, func(string) plugin.Plugin { return Plugin{} })
}

func callFor(h plugintest.Host, config string) plugintest.Call {
	return plugintest.Call{
		Type: "bandwidth", ID: "c1", IfName: "eth0", NetNS: h.NetNS, Prev: h.Result(),
		Config: `{"cniVersion": "1.0.0", "name": "podnet", "type": "bandwidth", ` + config + `}`,
	}
}

// described returns the queues and filters without addresses that the kernel
// generates.
func described(t testing.TB, h plugintest.Host) string {
	t.Helper()
	return strings.Join(plugintest.Audit(t, h.Host).Without(func(l string) bool { return strings.HasPrefix(l, "addr ") }), "\n")
}

func about(name string) func(string) bool {
	return func(line string) bool { return strings.Contains(line, name) }
}

// TestAddFails: an ADD that fails leaves the host as it was.
func TestAddFails(t *testing.T) {
	const both = `"ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000`
	for name, prepare := range map[string]func(*testing.T, plugintest.Host, *plugintest.Call){
		"no result":        func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.Prev = nil },
		"another's result": func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.Prev = []byte(`{"cniVersion": "1.0.0"}`) },
		"no interface":     func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.IfName = "eth1" },
		"no veth":          func(_ *testing.T, _ plugintest.Host, c *plugintest.Call) { c.IfName = "lo" },
		"another tbf": func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error {
				return nl.QdiscAdd(tbf(l.Attrs().Index, limit{8000, 8000}))
			})
		},
		"another ingress queue": func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscAdd(ingress(l.Attrs().Index)) })
		},
		"both ifbs": func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Inside(t, h.Host, func(nl *netlink.Handle) error {
				return errors.Join(
					nl.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: Device("podnet", "c1")}}),
					nl.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: OwnDevice("podnet", "c1", "eth0")}}))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := plugintest.NewHost(t)
			c := callFor(h, both)
			prepare(t, h, &c)
			before := plugintest.Audit(t, h.Host)
			t.Log(ours(h).MustFail(t, "ADD", c))
			// A device that had its own queue gets a named one from the kernel.
			same := func(l string) bool { return strings.Contains(l, "noqueue") }
			plugintest.NoLeak(t, before.Without(same), plugintest.Audit(t, h.Host).Without(same))
		})
	}
}

// TestDel: DEL succeeds whatever exists, and defers work that waits for the
// kernel.
func TestDel(t *testing.T) {
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, `"egressRate": 8000000, "egressBurst": 8000000`)
	side.Must(t, "DEL", c)
	for name, prepare := range map[string]func(plugintest.Call) plugintest.Call{
		"without a result":    func(c plugintest.Call) plugintest.Call { c.Prev = nil; return c },
		"without a namespace": func(c plugintest.Call) plugintest.Call { c.NetNS = ""; return c },
		"a namespace gone":    func(c plugintest.Call) plugintest.Call { c.NetNS += "gone"; return c },
		"a result without it": nil,
	} {
		h := plugintest.NewHost(t)
		side := ours(h)
		c := callFor(h, `"egressRate": 8000000, "egressBurst": 8000000`)
		c.Prev = side.Must(t, "ADD", c)
		if prepare != nil {
			c = prepare(c)
		} else {
			c.Prev = h.Result()
		}
		b := &thread.Batch{}
		if _, err := side.Run(contract.With(t.Context(), contract.Given{Batch: b}), "DEL", c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !shaped(plugintest.Audit(t, h.Host)) {
			t.Errorf("%s: deleted before the flush", name)
		}
		if err := b.Flush(context.Background()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if shaped(plugintest.Audit(t, h.Host)) {
			t.Errorf("%s: not deleted", name)
		}
		side.Must(t, "DEL", c)
	}
}

// TestFault_F48_DelWithoutTheDeviceInTheResultLeavesASiblings: another interface of the
// container has the device of that name, and this one has none.
func TestFault_F48_DelWithoutTheDeviceInTheResultLeavesASiblings(t *testing.T) {
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, `"egressRate": 8000000, "egressBurst": 8000000`)
	side.Must(t, "ADD", c)
	sibling := c
	sibling.IfName = "eth1" // whose ADD failed before it had a device
	stays := func(what string) {
		t.Helper()
		side.Must(t, "DEL", sibling)
		if !shaped(plugintest.Audit(t, h.Host)) {
			t.Fatalf("%s: the device of eth0 is gone", what)
		}
	}
	stays("no interface yet")
	nettest.Inside(t, h.Host, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "veth1"}, PeerName: "eth1", PeerNamespace: netlink.NsFd(h.Container.File().Fd()),
		})
	})
	sibling.Prev = []byte(strings.NewReplacer(`"veth0"`, `"veth1"`, `"eth0"`, `"eth1"`).Replace(string(h.Result())))
	stays("an interface")
}

func shaped(lines audit.Lines) bool {
	return len(lines) != len(lines.Without(about(Device("podnet", "c1"))))
}

// TestFault_F48_ADeviceOfThatNameIsLeftAlone: another attachment's device has
// the name. It stays, and ours gets another name.
func TestFault_F48_ADeviceOfThatNameIsLeftAlone(t *testing.T) {
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, `"egressRate": 8000000, "egressBurst": 8000000`)
	other := Device("podnet", "c1")
	nettest.Inside(t, h.Host, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: other}})
	})
	index := nettest.Link(t, h.Host, other).Attrs().Index
	c.Prev = side.Must(t, "ADD", c)
	side.Must(t, "CHECK", c)
	own := OwnDevice("podnet", "c1", "eth0")
	nettest.Link(t, h.Host, own)
	side.Must(t, "DEL", c)
	if lines := plugintest.Audit(t, h.Host); len(lines) != len(lines.Without(about(own))) {
		t.Errorf("%s is there after DEL", own)
	}
	for name, config := range map[string]string{"unshaped": `"ingressRate": 8, "ingressBurst": 8`, "no limit": `"x": 1`} {
		d := callFor(h, config)
		d.IfName = "eth1"
		side.Must(t, "DEL", d)
		d.Prev = nil
		side.Must(t, "DEL", d)
		if nettest.Link(t, h.Host, other).Attrs().Index != index {
			t.Errorf("%s: another %s", name, other)
		}
	}
}
