package leftovers

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/store/record"
)

// TestHostPorts: the ports come in the caller's form and in the record's.
func TestHostPorts(t *testing.T) {
	want := []netfilter.HostPort{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 53, ContainerPort: 5353, Protocol: "udp", HostIP: netip.MustParseAddr("fd00::1")},
	}
	const recorded = `[{"hostPort": 8080, "containerPort": 80}, {"hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": "fd00::1"}]`
	var decoded any
	expect.NoError(t, json.Unmarshal([]byte(recorded), &decoded))
	for name, mappings := range map[string]any{
		"the caller's": []struct {
			HostPort, ContainerPort int32
			Protocol, HostIP        string
		}{{8080, 80, "tcp", ""}, {53, 5353, "udp", "fd00::1"}},
		"recorded": json.RawMessage(recorded),
		"decoded":  decoded,
	} {
		expect.Same(t, name, expect.Value(hostPorts(mappings))(t), want)
	}
	got, err := hostPorts(nil)
	expect.That(t, err == nil && len(got) == 0, "none: got %v, %v", got, err)
	for _, bad := range []any{"x", json.RawMessage(`[{"hostPort": 0}]`), json.RawMessage(`[{"hostPort": 1, "containerPort": 1, "hostIP": "x"}]`), func() {}} {
		got, err := hostPorts(bad)
		expect.That(t, err != nil, "%T is read as %v", bad, got)
	}
}

// TestLostWith: an executable deletes the rules of its kind that share a chain, or a
// comment, with the attachment's.
func TestLostWith(t *testing.T) {
	const chain = `{"type": "bridge"}, {"type": "portmap"}, {"type": "firewall"}`
	a, sibling, elsewhere := attachment(t, chain), attachment(t, chain), attachment(t, chain)
	elsewhere.List.Name = "other"
	a.Ran.Plugins = []record.Plugin{
		{Type: "bridge", Kind: record.KindExecutable}, {Type: "portmap", Kind: record.KindExecutable}, {Type: "firewall", Kind: record.KindExecutable},
	}
	for _, tt := range []struct {
		deleted string
		sibling *Attachment
		wanted  Wanted
		lost    bool
	}{
		{"portmap", sibling, Wanted{Type: "portmap"}, true},
		{"portmap", elsewhere, Wanted{Type: "portmap"}, true},
		{"portmap", sibling, Wanted{Type: "bridge"}, false},
		{"bridge", sibling, Wanted{Type: "ptp"}, true},
		{"bridge", elsewhere, Wanted{Type: "bridge"}, false},
	} {
		got := a.LostWith(tt.deleted)(tt.sibling, tt.wanted)
		expect.That(t, got == tt.lost, "DEL of %s, rules of %s on network %s: lost is %v", tt.deleted, tt.wanted.Type, tt.sibling.List.Name, got)
	}
	expect.That(t, a.LostWith("firewall") == nil, "a DEL of firewall deletes rules of siblings")
	for _, kind := range []string{record.KindBuiltIn, record.KindRegistered} {
		a.Ran.Plugins[1].Kind = kind
		expect.That(t, a.LostWith("portmap") == nil, "a DEL of portmap, %s, deletes rules of siblings", kind)
	}
}
