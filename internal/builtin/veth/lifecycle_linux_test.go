package veth_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
)

// both returns the two plugins, with a gateway for both families and
// host-local's addresses.
func both() []attaching {
	return []attaching{
		{name: "bridge", typ: "bridge", conf: `"isGateway": true, ` + hostLocal},
		{name: "ptp", typ: "ptp", conf: hostLocal},
	}
}

// TestAddressesAreUsableWhenAddReturns: packets pass as soon as ADD returns,
// even if the host remembers another container with the address. Nothing waits.
func TestAddressesAreUsableWhenAddReturns(t *testing.T) {
	conf := `"isGateway": true, "ipam": {"type": "static", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
		"addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::2/64", "gateway": "fd00:1::1"}]}`
	for _, typ := range []string{"bridge", "ptp"} {
		t.Run(typ, func(t *testing.T) {
			h := newHost(t)
			// With another container on it, the bridge keeps its neighbour
			// entries.
			another := attaching{typ: typ, conf: strings.ReplaceAll(strings.ReplaceAll(conf, "::2/", "::9/"), ".2/", ".9/")}.call()
			another.id = "another"
			h.namespace(another.id)
			h.must("ADD", another)
			n := 0
			for _, fromHost := range []bool{true, true, false, false, true} {
				expect.Quick(t, "a connection", soon, func() time.Duration {
					c := attaching{typ: typ, conf: conf}.call()
					c.id = fmt.Sprint("c", n)
					n++
					h.namespace(c.id)
					h.must("ADD", c)
					defer h.must("DEL", c)
					inside := h.open(c.id)
					defer inside.Close()
					if fromHost {
						return reach(t, h.ns, inside, "10.1.0.2", "fd00:1::2")
					}
					return reach(t, inside, h.ns, "10.1.0.1", "fd00:1::1")
				})
			}
		})
	}
}

// reach connects to the addresses, and returns the longest time that one takes.
func reach(t *testing.T, from, to *netns.Handle, addrs ...string) (longest time.Duration) {
	t.Helper()
	for _, addr := range addrs {
		longest = max(longest, plugintest.Connect(t, from, to, netip.MustParseAddr(addr)))
	}
	return longest
}

// TestDel: DEL deletes everything that exists, however little it is told.
func TestDel(t *testing.T) {
	for _, s := range both() {
		tests := map[string]func(h *host, c *call){
			"with everything":         func(*host, *call) {},
			"without a result":        func(_ *host, c *call) { c.prev = nil },
			"without the interface":   func(h *host, c *call) { h.in(c.id, "ip link del eth0") },
			"without the addresses":   func(h *host, c *call) { h.in(c.id, "ip addr flush dev eth0") },
			"without the bridge":      func(h *host, c *call) { h.sh("ip link del cni0 || true") },
			"with the interface down": func(h *host, c *call) { h.in(c.id, "ip link set eth0 down") },
			"with a wrong result": func(_ *host, c *call) {
				c.prev = []byte(`{"cniVersion": "1.0.0", "interfaces": [{}], "ips": [{"address": "1.2.3.4/24"}]}`)
			},
			"without a path":           func(_ *host, c *call) { c.args = "NOPATH" },
			"with a path to nothing":   func(_ *host, c *call) { c.args = "GONE" },
			"with a path to something": func(_ *host, c *call) { c.args = "FILE" },
		}
		for name, change := range tests {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				h := newHost(t)
				c := s.call()
				h.namespace(c.id)
				clean := h.snapshot()
				c.prev = h.must("ADD", c)
				change(h, &c)
				for range 2 {
					if err := h.del(c); err != nil {
						t.Error(err)
					}
				}
				h.wantClean(clean)
			})
		}
	}
}

// del runs DEL with the CNI_NETNS of the arguments.
func (h *host) del(c call) error {
	h.t.Helper()
	netNS := map[string]string{"NOPATH": "", "GONE": h.path("gone"), "FILE": filepath.Join(h.dir, "file")}
	other, ok := netNS[c.args]
	if !ok {
		_, err := h.run(h.t.Context(), "DEL", c)
		return err
	}
	c.args = ""
	if err := os.WriteFile(filepath.Join(h.dir, "file"), nil, 0o600); err != nil {
		return err
	}
	copied := *h
	copied.netNS = &other
	_, err := copied.run(h.t.Context(), "DEL", c)
	return err
}

// TestDelWhenTheIPAMPluginFails: the IPAM plugin's error is reported, and
// everything else is deleted.
func TestDelWhenTheIPAMPluginFails(t *testing.T) {
	for _, s := range both() {
		h := newHost(t)
		c := s.call()
		h.namespace(c.id)
		clean := h.snapshot()
		c.prev = h.must("ADD", c)
		broken := c
		broken.conf = strings.Replace(c.conf, `"dataDir": "DIR/ipam"`, `"dataDir": 5`, 1)
		if out, err := h.run(t.Context(), "DEL", broken); err == nil || !strings.HasPrefix(err.Error(), `IPAM plugin "host-local": `) {
			t.Errorf("%s: %s, %v", s.name, out, err)
		}
		if inside := h.inside(c.id); strings.Contains(inside, "link eth0") {
			t.Errorf("%s: in the container there is\n%s", s.name, inside)
		}
		h.must("DEL", c)
		h.wantClean(clean)
	}
}

// TestFailedAddLeavesNothing, wherever it fails.
func TestFailedAddLeavesNothing(t *testing.T) {
	tests := []struct{ name, typ, conf, before, want string }{
		{"the name is taken", "bridge", `"isGateway": true, ` + hostLocal, "in: ip link add eth0 type bridge",
			`interface "eth0" exists in the container already: file exists`},
		{"the name is taken", "ptp", hostLocal, "in: ip link add eth0 type bridge",
			`interface "eth0" exists in the container already: file exists`},
		{"the bridge is none", "bridge", hostLocal, "ip link add cni0 type veth peer name x",
			`"bridge": interface "cni0" exists and is not a bridge, but "veth"`},
		{"another address", "bridge", `"isGateway": true, ` + hostLocal, "ip link add cni0 type bridge; ip addr add 10.1.0.9/24 dev cni0",
			`interface "cni0" has the address 10.1.0.9/24 already, and not 10.1.0.1/24: set "forceAddress" to replace it`},
		{"another IPv6 address", "bridge", `"isGateway": true, ` + hostLocal, "ip link add cni0 type bridge; ip addr add fd00:1::9/48 dev cni0",
			`interface "cni0" has the address fd00:1::9/48 already, and not fd00:1::1/64: set "forceAddress" to replace it`},
		{"the MTU is too large", "bridge", `"mtu": 70000, ` + hostLocal, "",
			`create bridge "cni0": invalid argument (mtu greater than device maximum)`},
		{"the MTU is too large", "ptp", `"mtu": 70000, ` + hostLocal, "",
			`create veth pair "vethX" and "eth0": invalid argument`},
		{"the MAC is a group's", "bridge", `"runtimeConfig": {"mac": "01:00:00:00:00:01"}, ` + hostLocal, "",
			`create veth pair "vethX" and "eth0": cannot assign requested address`},
		{"no address", "bridge", `"ipam": {"type": "static"}`, "", `IPAM plugin "static": the result has no address`},
		{"no address", "ptp", `"ipam": {"type": "static"}`, "", `IPAM plugin "static": the result has no address`},
		{"no gateway", "ptp", static4, "", `"ipam": address 10.1.0.2/24 has no gateway, which is the address of the host's end`},
		{"no IPAM plugin", "ptp", ``, "", `"ipam": plugin "ptp" needs an IPAM plugin: its "type" is missing`},
		{"a route that cannot be", "bridge", `"ipam": {"type": "host-local", "dataDir": "DIR/ipam", "subnet": "10.1.0.0/24", "routes": [{"dst": "10.7.0.0/16", "gw": "10.2.0.1"}]}`, "",
			`interface "eth0" in the container: add route 10.7.0.0/16 via 10.2.0.1: network is unreachable (Nexthop has invalid gateway)`},
		{"VLANs on a bridge that mixes them", "bridge", `"vlan": 7, ` + hostLocal, "ip link add cni0 type bridge",
			`"vlan", "vlanTrunk": bridge "cni0" does not keep VLANs apart: set its vlan_filtering to 1; if it cannot be set, this kernel was built without BRIDGE_VLAN_FILTERING`},
	}
	for _, test := range tests {
		t.Run(test.typ+"/"+test.name, func(t *testing.T) {
			h := newHost(t)
			c := attaching{typ: test.typ, conf: test.conf}.call()
			h.namespace(c.id)
			if script, ok := strings.CutPrefix(test.before, "in: "); ok {
				h.in(c.id, script)
			} else {
				h.sh(test.before)
			}
			clean, inside := h.snapshot(), h.inside(c.id)
			h.mustFail("ADD", c, test.want)
			if test.before != "" && !strings.Contains(test.before, "in:") {
				// Existing objects are unchanged, except that the bridge may be
				// up.
				clean = clean.Without(audit.Shared)
			}
			h.wantClean(clean)
			expect.Same(t, "in the container", h.inside(c.id), inside)
			h.must("DEL", c)
		})
	}
}

// TestManyAtOnce: many concurrent containers of a cold host find, or make, one bridge with
// one address, and each of them notes that an ADD made it.
func TestManyAtOnce(t *testing.T) {
	const many = 64
	for typ, notes := range map[string]string{"bridge": "bridge.made", "ptp": ""} {
		t.Run(typ, func(t *testing.T) {
			h := newHost(t)
			h.side = plugintest.Ours(h.ns, builtin.New())
			all := make([]*attached, many)
			for i := range all {
				all[i] = &attached{h: h, memory: plugintest.NewMemory(), c: attaching{typ: typ, conf: fmt.Sprintf(`"isDefaultGateway": true, "macspoofchk": true, "ipam": {"type": "static", "addresses": [
					{"address": "10.1.0.%d/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::%d/64", "gateway": "fd00:1::1"}]}`, i+2, i+2)}.call()}
				all[i].c.id = fmt.Sprint("c", i)
				h.namespace(all[i].c.id)
			}
			clean := h.snapshot()
			run := func(verb string) {
				each(t, many, func(i int) error {
					out, err := h.run(all[i].context(), verb, all[i].c)
					if verb == "ADD" {
						all[i].c.prev = out
					}
					return err
				})
			}
			run("ADD")
			for _, a := range all {
				expect.Same(t, "notes of "+a.c.id, strings.Join(a.memory.Keys(), " "), notes)
			}
			run("CHECK")
			run("DEL")
			h.wantClean(clean)
		})
	}
}

// each runs fn for all numbers concurrently.
func each(t *testing.T, n int, fn func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = fn(i)
		})
	}
	wg.Wait()
	expect.NoError(t, errors.Join(errs...))
}

// TestDelInABatch: in a batch, DEL returns before the kernel has deleted the
// pair. The address is already removed, and a flush deletes the pair after the
// request has ended.
func TestDelInABatch(t *testing.T) {
	for _, s := range both() {
		h := newHost(t)
		c := s.call()
		h.namespace(c.id)
		clean := h.snapshot()
		c.prev = h.must("ADD", c)
		b := &thread.Batch{}
		expect.Value(h.run(contract.With(t.Context(), contract.Given{Batch: b}), "DEL", c))(t)
		if before := h.inside(c.id); !strings.Contains(before, "link eth0") || strings.Contains(before, "addr eth0") {
			t.Errorf("%s: before the flush there is\n%s", s.name, before)
		}
		expect.NoError(t, b.Flush(t.Context()))
		h.wantClean(clean)
	}
}

// TestConfigurationErrors: an error in a configuration names the field.
func TestConfigurationErrors(t *testing.T) {
	tests := []struct{ typ, conf, args, want string }{
		{"bridge", `"bridge": ""`, "", `"bridge": "" is no name of an interface: 1 to 15 characters`},
		{"bridge", `"bridge": "a-bridge-of-16-c"`, "", `"bridge": "a-bridge-of-16-c" is no name of an interface: 1 to 15 characters`},
		{"bridge", `"bridge": "br%d"`, "", `"bridge": "br%d" contains %, which the kernel replaces by a number`},
		{"bridge", `"mtu": -1`, "", `"mtu": -1 is negative`},
		{"ptp", `"mtu": -1`, "", `"mtu": -1 is negative`},
		{"ptp", `"ipMasq": true, "ipMasqBackend": "ipfw"`, "", `"ipMasqBackend": unknown backend "ipfw": use "iptables" or "nftables"`},
		{"bridge", `"vlan": 4095`, "", `"vlan": 4095 is not between 1 and 4094`},
		{"bridge", `"vlan": -1`, "", `"vlan": -1 is not between 1 and 4094`},
		{"bridge", `"vlanTrunk": [{"id": 5}, {"minID": 5}]`, "", `"vlanTrunk": entry 1 has one of minID and maxID: it needs both, or neither`},
		{"bridge", `"vlanTrunk": [{"maxID": 5}]`, "", `"vlanTrunk": entry 0 has one of minID and maxID: it needs both, or neither`},
		{"bridge", `"vlanTrunk": [{"minID": 5, "maxID": 4}]`, "", `"vlanTrunk": entry 0 has minID 5 above maxID 4`},
		{"bridge", `"vlanTrunk": [{"minID": 0, "maxID": 4}]`, "", `"vlanTrunk": entry 0: 0 to 4 is not within 1 and 4094`},
		{"bridge", `"vlanTrunk": [{"minID": 9, "maxID": 4095}]`, "", `"vlanTrunk": entry 0: 9 to 4095 is not within 1 and 4094`},
		{"bridge", `"vlanTrunk": [{"id": 4095}]`, "", `"vlanTrunk": entry 0: id 4095 is not between 1 and 4094`},
		{"bridge", `"hairpinMode": true, "promiscMode": true`, "", `"hairpinMode" and "promiscMode" exclude each other`},
		{"bridge", `"disableContainerInterface": true, ` + static4, "", `"disableContainerInterface" excludes "ipam": an interface that is down has no use for addresses`},
		{"bridge", `"runtimeConfig": {"mac": "x"}`, "", `"runtimeConfig.mac": "x" is not the MAC address of an Ethernet interface`},
		{"bridge", `"args": {"cni": {"mac": "00:00:5e:00:53:01:00:00"}}`, "", `"args.cni.mac": "00:00:5e:00:53:01:00:00" is not the MAC address of an Ethernet interface`},
		{"bridge", `"mtu": 0`, "MAC=y", `"MAC in CNI_ARGS": "y" is not the MAC address of an Ethernet interface`},
	}
	h := newHost(t)
	h.namespace("c1")
	clean := h.snapshot()
	for _, test := range tests {
		c := attaching{typ: test.typ, conf: test.conf, args: test.args}.call()
		_, err := h.run(t.Context(), "ADD", c)
		e := &types.Error{}
		if !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || e.Msg != test.want {
			t.Errorf("%s: got %v\nwant %s", test.conf, err, test.want)
		}
	}
	h.wantClean(clean)
}
