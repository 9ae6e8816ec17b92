package bandwidth

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/plugin"
)

// configurations with limits in one direction, the other, and both, and with
// rates that need rounding.
var configurations = map[string]string{
	"ingress":    `"ingressRate": 8000000, "ingressBurst": 8000000`,
	"egress":     `"egressRate": 123456789, "egressBurst": 3000001`,
	"both":       `"ingressRate": 8, "ingressBurst": 8, "egressRate": 99999999999, "egressBurst": 34359738352`,
	"capability": `"runtimeConfig": {"bandwidth": {"ingressRate": 1000003, "ingressBurst": 999, "egressRate": 77, "egressBurst": 123456}}`,
	"none":       `"ingressRate": 0, "ingressBurst": 0`,
}

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

// printed returns a result without the parts that differ between runs.
func printed(t testing.TB, h plugintest.Host, out []byte) string {
	t.Helper()
	r, err := plugintest.Result(out)
	if err != nil {
		t.Fatal(err)
	}
	text := h.Portable(t, out)
	for _, i := range r.Interfaces {
		if strings.HasPrefix(i.Name, "bwp") {
			if mac := nettest.Link(t, h.Host, i.Name).Attrs().HardwareAddr.String(); mac != i.Mac {
				t.Errorf("interface %s has %s, and not %s", i.Name, mac, i.Mac)
			}
			text = strings.ReplaceAll(text, i.Mac, "RANDOM")
		}
	}
	return text
}

func TestInterchange(t *testing.T) {
	for name, config := range configurations {
		t.Run(name, func(t *testing.T) {
			var results, states [2]string
			for i := range 2 {
				h := plugintest.NewHost(t)
				sides := []plugintest.Side{ours(h), plugintest.Theirs(t, h.Host)}
				add, other := sides[i], sides[1-i]
				before := plugintest.Audit(t, h.Host)
				c := callFor(h, config)
				c.Prev = add.Must(t, "ADD", c)
				results[i], states[i] = printed(t, h, c.Prev), described(t, h)
				other.Must(t, "CHECK", c)
				add.Must(t, "CHECK", c)
				other.Must(t, "DEL", c)
				add.Must(t, "DEL", c)
				nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) })
				plugintest.NoLeak(t, before.Without(about("veth0")), plugintest.Audit(t, h.Host))
			}
			if results[0] != results[1] {
				t.Errorf("got %s\nwant %s", results[0], results[1])
			}
			if states[0] != states[1] {
				t.Errorf("got\n%s\nwant\n%s", states[0], states[1])
			}
			if got, want := strings.Contains(states[0], "tbf"), name != "none"; got != want {
				t.Errorf("limited: %v, want %v:\n%s", got, want, states[0])
			}
		})
	}
}

func about(name string) func(string) bool {
	return func(line string) bool { return strings.Contains(line, name) }
}

func TestCheckDetects(t *testing.T) {
	ifb := Device("podnet", "c1")
	host := func(name string, f func(*netlink.Handle, netlink.Link) error) func(*testing.T, plugintest.Host) {
		return func(t *testing.T, h plugintest.Host) { nettest.Change(t, h.Host, name, f) }
	}
	other := limit{rate: 8_000_000, burst: 4000}
	replace := func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscReplace(tbf(l.Attrs().Index, other)) }
	for name, damage := range map[string]func(*testing.T, plugintest.Host){
		"no tbf on the veth":  host("veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscDel(tbf(l.Attrs().Index, other)) }),
		"another on the veth": host("veth0", replace),
		"no tbf on the ifb":   host(ifb, func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscDel(tbf(l.Attrs().Index, other)) }),
		"another on the ifb":  host(ifb, replace),
		"no ifb":              host(ifb, func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) }),
		"ifb down":            host(ifb, func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetDown(l) }),
		"no ingress queue":    host("veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscDel(ingress(l.Attrs().Index)) }),
		"no redirection": host("veth0", func(nl *netlink.Handle, l netlink.Link) error {
			filters, err := nl.FilterList(l, netlink.MakeHandle(0xffff, 0))
			if err != nil {
				return err
			}
			return nl.FilterDel(filters[0])
		}),
		"no veth": host("veth0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) }),
	} {
		t.Run(name, func(t *testing.T) {
			h := plugintest.NewHost(t)
			side, c := ours(h), callFor(h, `"ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000`)
			c.Prev = side.Must(t, "ADD", c)
			side.Must(t, "CHECK", c)
			damage(t, h)
			t.Log(side.MustFail(t, "CHECK", c))
		})
	}
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
		b := &batch.Batch{}
		if _, err := side.Run(caller.With(t.Context(), caller.Given{Batch: b}), "DEL", c); err != nil {
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
