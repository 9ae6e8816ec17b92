package leftovers

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
)

const result = `{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "veth1", "mac": "0a:00:00:00:00:01"},
	{"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/ns"}], "ips": [{"address": "10.1.0.2/24", "interface": 2}]}`

// attachment returns an attachment of c1 to the network net, with these
// plugins.
func attachment(t *testing.T, plugins string) *Attachment {
	t.Helper()
	list := expect.Value(conflist.Parse([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [` + plugins + `]}`)))(t)
	return &Attachment{
		Params: chain.Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: "c1", IfName: "eth0"}},
		List:   list, Result: json.RawMessage(result), Recorded: true,
	}
}

func TestOf(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("10.1.0.2")}
	ends := []Link{{Name: "br0"}, {Name: "veth1", MAC: "0a:00:00:00:00:01"}}
	port := netfilter.HostPort{HostPort: 53, ContainerPort: 5353, Protocol: "udp"}
	udp := func(a *Attachment) {
		a.Params.CapabilityArgs = map[string]any{ports.Capability: json.RawMessage(`[{"hostPort": 53, "containerPort": 5353, "protocol": "UDP"}]`)}
	}
	lent := &Device{Kind: "device", PermMAC: "3c:ec:ef:00:00:01", HostName: "eno1"}
	noted := func(d Device) func(*Attachment) {
		return func(a *Attachment) { a.Kernel.Noted, _ = json.Marshal(d) }
	}
	settled := *lent
	settled.Settled = true
	for name, c := range map[string]struct {
		plugins string
		with    func(*Attachment)
		want    Footprint
	}{
		"bridge": {
			plugins: `{"type": "bridge", "ipam": {"type": "host-local"}}`,
			want:    Footprint{Interface: Interface{Made: true, Dies: true}, IPAMDirs: []string{"/var/lib/cni/networks/net"}},
		},
		"masquerade, with fields of other types": {
			plugins: `{"type": "ptp", "ipMasq": "yes", "ipam": {"type": "host-local", "dataDir": "/d", "ranges": 1}}`,
			want:    Footprint{Interface: Interface{Made: true, Dies: true}, Rules: Rules{Possible: true}, IPAMDirs: []string{"/d/net"}},
		},
		"no masquerade": {
			plugins: `{"type": "bridge", "ipMasq": false}`,
			want:    Footprint{Interface: Interface{Made: true, Dies: true}},
		},
		"a bridge that is not first": {plugins: `{"type": "other"}, {"type": "bridge"}`},
		"ports": {
			plugins: `{"type": "other"}, {"type": "portmap"}`, with: udp,
			want: Footprint{Rules: Rules{Possible: true, UDP: true, Ports: []netfilter.HostPort{port}}},
		},
		"no ports":              {plugins: `{"type": "other"}, {"type": "portmap"}`, want: Footprint{Rules: Rules{Possible: true}}},
		"ports without portmap": {plugins: `{"type": "other"}`, with: udp, want: Footprint{Rules: Rules{Ports: []netfilter.HostPort{port}}}},
		"ports that cannot be read": {
			plugins: `{"type": "portmap"}`, with: func(a *Attachment) { a.Params.CapabilityArgs = map[string]any{ports.Capability: "x"} },
			want: Footprint{Rules: Rules{Possible: true, UDP: true, AnyPort: true}},
		},
		"ports without a record": {
			plugins: `{"type": "portmap"}`, with: func(a *Attachment) { a.Recorded = false },
			want: Footprint{Rules: Rules{Possible: true, UDP: true}},
		},
		"firewall": {plugins: `{"type": "firewall"}`, want: Footprint{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Rules: Rules{Possible: true}, Zones: []string{firewalld.DefaultZone}}},
		"firewall after a reboot": {
			plugins: `{"type": "firewall"}`, with: func(a *Attachment) { a.Kernel.Rebooted = true },
			want: Footprint{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Interface: Interface{Dies: true}, Rules: Rules{Possible: true}},
		},
		"firewalld's zone": {
			plugins: `{"type": "firewall", "backend": "firewalld", "firewalldZone": "work"}`,
			want:    Footprint{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Rules: Rules{Possible: true}, Zones: []string{"work"}},
		},
		"firewall without firewalld": {
			plugins: `{"type": "firewall"}`,
			with: func(a *Attachment) {
				a.Ran.Plugins = []record.Plugin{{Type: "firewall", Kind: record.KindBuiltIn, Backend: netfilter.DetectedIPTables}}
			},
			want: Footprint{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, Rules: Rules{Possible: true}},
		},
		"a shaper":             {plugins: `{"type": "bandwidth", "egressRate": 8}`, want: Footprint{Shaper: Shaper{Possible: true, Egress: true}}},
		"a shaper for ingress": {plugins: `{"type": "bandwidth", "ingressRate": 8}`, want: Footprint{Shaper: Shaper{Possible: true}}},
		"a shaper by capability": {
			plugins: `{"type": "bandwidth"}`, with: func(a *Attachment) {
				a.Params.CapabilityArgs = map[string]any{"bandwidth": map[string]any{"egressRate": 8}}
			},
			want: Footprint{Shaper: Shaper{Possible: true, Egress: true}},
		},
		"a device that the configuration names": {
			plugins: `{"type": "host-device", "device": "eno2"}, {"type": "tuning"}`,
			want:    Footprint{Interface: Interface{HostName: "eno2"}, Backups: []string{tuning.File(nil, "c1", "eth0")}},
		},
		"a device": {
			plugins: `{"type": "host-device"}`, with: noted(*lent),
			want: Footprint{Interface: Interface{Device: lent, HostName: "eno1"}},
		},
		"a device that is back": {plugins: `{"type": "host-device"}`, with: noted(settled), want: Footprint{Interface: Interface{HostName: "eno1"}}},
		"a device after a reboot": {
			plugins: `{"type": "host-device"}`, with: func(a *Attachment) { noted(*lent)(a); a.Kernel.Rebooted = true },
			want: Footprint{Interface: Interface{Dies: true}},
		},
	} {
		a := attachment(t, c.plugins)
		if c.with != nil {
			c.with(a)
		}
		c.want.Owner, c.want.Addresses, c.want.Interface.HostEnds = a.Owner(), addresses, ends
		expect.Same(t, name, Of(a), c.want)
	}
}

// TestCovers: a plugin is covered if the sweep undoes all of its work.
func TestCovers(t *testing.T) {
	device := `{"type": "host-device"}, {"type": "tuning"}`
	for name, c := range map[string]struct {
		plugins string
		with    func(*Attachment)
		covered string
		not     string
	}{
		"made interfaces":      {`{"type": "bridge"}, {"type": "tuning"}`, nil, "bridge ptp macvlan ipvlan loopback portmap firewall bandwidth tuning", "vlan other dhcp"},
		"an unknown interface": {`{"type": "other"}, {"type": "tuning"}`, nil, "host-device", "other tuning"},
		"an unknown device":    {device, nil, "", "host-device tuning"},
		"a known device":       {device, func(a *Attachment) { a.Kernel.Noted = json.RawMessage(`{"hostName": "eno1"}`) }, "host-device tuning", ""},
		"after a reboot":       {device, func(a *Attachment) { a.Kernel.Rebooted = true }, "host-device tuning", ""},
		"the caller's bridge": {`{"type": "bridge"}, {"type": "tuning"}`, func(a *Attachment) {
			a.Ran.IsRegistered = func(typ string) bool { return typ == "bridge" }
		}, "portmap", "bridge tuning"},
		"the caller's now": {`{"type": "bridge"}`, func(a *Attachment) {
			a.Ran.IsRegistered = func(string) bool { return true }
			a.Ran.Plugins = []record.Plugin{{Type: "bridge", Kind: record.KindExecutable}}
		}, "bridge", ""},
	} {
		a := attachment(t, c.plugins)
		if c.with != nil {
			c.with(a)
		}
		for _, typ := range strings.Fields(c.covered) {
			expect.That(t, a.Covers(typ), "%s: %s is not covered", name, typ)
		}
		for _, typ := range strings.Fields(c.not) {
			expect.That(t, !a.Covers(typ), "%s: %s is covered", name, typ)
		}
	}
}

// records are a host's records.
type records []record.Found

func (r records) Each(found func(record.Found) bool) error {
	for _, f := range r {
		if !found(f) {
			break
		}
	}
	return nil
}

// TestOthers: the container itself is not among them, even under the ID that a
// pool gave it.
func TestOthers(t *testing.T) {
	entry := func(id record.ID, pooled record.PluginID, n record.Attachment) record.Found {
		return record.Found{Record: &record.Record{ContainerID: id, PluginID: pooled, Attachments: []record.Attachment{n}}}
	}
	addressed := func(addr, plugins string, state record.State) record.Attachment {
		return record.Attachment{
			Network: "net", IfName: "eth0", State: state, Config: []byte(`{"name": "net", "plugins": [` + plugins + `]}`),
			Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "` + addr + `/24"}]}`),
			Facts:  map[string]json.RawMessage{DeviceFact: json.RawMessage(`{"kind": "device", "permMAC": "` + addr + `"}`)},
		}
	}
	others := Others{ContainerID: "c1", Plugins: "pool-1", IfName: "eth0", Records: records{
		entry("c1", "pool-1", addressed("10.1.0.1", `{"type": "firewall"}`, record.Added)),
		entry("pool-1", "", addressed("10.1.0.1", `{"type": "firewall"}`, record.Added)),
		entry("c2", "", addressed("10.1.0.2", `{"type": "firewall"}`, record.Added)),
		entry("c3", "", addressed("10.1.0.3", `{"type": "bridge"}`, record.Planned)),
		entry("c4", "", addressed("10.1.0.4", `{"type": "firewall"}`, record.Deleted)),
	}}
	for name, c := range map[string]struct {
		of   func() ([]netip.Addr, error)
		want []netip.Addr
	}{
		"in use":   {others.InUse, []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")}},
		"in zones": {others.InZones, []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
	} {
		expect.Same(t, name, expect.Value(c.of())(t), c.want)
	}
	for addr, want := range map[string]bool{"10.1.0.1": false, "10.1.0.2": true, "10.1.0.4": false} {
		expect.Same(t, "others have the device "+addr, expect.Value(others.HaveDevice(&Device{Kind: "device", PermMAC: addr}))(t), want)
	}
}

// TestOneThatLeavesNeedsItsNetworkNoMore: whoever is last takes the rules along.
func TestOneThatLeavesNeedsItsNetworkNoMore(t *testing.T) {
	subnet, other := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")
	for what, tt := range map[string]struct {
		state record.State
		note  string
		needs bool
	}{
		"attached":                {record.Added, `{"subnets": ["10.1.0.0/16"]}`, true},
		"being attached":          {record.Planned, `{"subnets": ["10.1.0.0/16"]}`, true},
		"about to leave":          {record.Added, `{"subnets": ["10.1.0.0/16"], "leaving": true}`, false},
		"being removed":           {record.Deleting, `{"subnets": ["10.1.0.0/16"]}`, false},
		"being removed, and left": {record.Deleting, `{"subnets": ["10.1.0.0/16"], "leaving": true}`, false},
		"removed":                 {record.Deleted, `{"subnets": ["10.1.0.0/16"]}`, false},
	} {
		n := record.Attachment{IfName: "eth0", State: tt.state, Plugins: []record.Plugin{{Type: "bridge"}}, Facts: map[string]json.RawMessage{"firewall.subnets": json.RawMessage(tt.note)}}
		others := Others{ContainerID: "c1", Plugins: "c1", IfName: "eth0", Records: records{{Record: &record.Record{ContainerID: "c2", Attachments: []record.Attachment{n}}}}}
		for of, want := range map[netip.Prefix]bool{subnet: tt.needs, other: false} {
			got, err := others.InNetwork(of)
			expect.That(t, err == nil && got == want, "%s: needs %v: %v, %v", what, of, got, err)
		}
	}
}

// TestMadeInterface: the result decides, and without one the first plugin's type.
func TestMadeInterface(t *testing.T) {
	const bridge, portmap = `{"type": "bridge"}`, `{"type": "portmap"}`
	for _, tt := range []struct {
		name, plugins, ifName, result string
		want                          bool
	}{
		{"in the result", bridge, "eth0", result, true},
		{"another in the result", bridge, "eth1", result, false},
		{"lo", `{"type": "loopback"}`, "lo", "", false},
		{"no result", bridge, "eth0", "", true},
		{"no interfaces in the result", bridge, "eth0", `{"cniVersion": "1.0.0"}`, true},
		{"no interfaces, and none is made", portmap, "eth0", `{"cniVersion": "1.0.0"}`, false},
		{"for a driver in user space", bridge, "eth0",
			`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/ns", "pciID": "0000:00:1f.6"}]}`, false},
	} {
		a := attachment(t, tt.plugins)
		a.Params.IfName, a.Result = tt.ifName, json.RawMessage(tt.result)
		expect.Same(t, tt.name, a.MadeInterface(), tt.want)
	}
}
