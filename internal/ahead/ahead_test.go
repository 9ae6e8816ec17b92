package ahead

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// config returns a plugin's configuration with a prevResult: an address of each
// family on a bridge.
func config(typ, own string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "podnet", "type": %q%s, "prevResult": {"cniVersion": "1.0.0",
		"interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/ns"}, {"name": "eth1", "sandbox": "/ns"}],
		"ips": [{"address": "10.1.0.2/24", "interface": 1}, {"address": "fd00::2/64", "interface": 1},
			{"address": "10.2.0.2/24", "interface": 2}]}}`, typ, own)
}

func TestRules(t *testing.T) {
	const ports = `, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]}`
	portmap := func(change func(*fwrules.HostPorts)) fwrules.Rules {
		h := fwrules.HostPorts{
			V4: netip.MustParsePrefix("10.1.0.2/32"), V6: netip.MustParsePrefix("fd00::2/128"),
			SNAT: true, MarkMasqBit: 13, Ports: make([]fwrules.HostPort, 1),
		}
		change(&h)
		return fwrules.Rules{HostPorts: []fwrules.HostPorts{h}}
	}
	firewall := func(change func(*fwrules.Forward)) fwrules.Rules {
		f := fwrules.Forward{Bridge: "br0", Addresses: []netip.Addr{
			netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("10.2.0.2")}}
		change(&f)
		return fwrules.Rules{Forward: []fwrules.Forward{f}}
	}
	none := fwrules.Rules{}
	for name, tt := range map[string]struct {
		typ, own  string
		firewalld bool
		want      fwrules.Rules
	}{
		"portmap":                  {typ: "portmap", own: ports, want: portmap(func(*fwrules.HostPorts) {})},
		"portmap iptables":         {typ: "portmap", own: ports + `, "backend": "iptables"`, want: portmap(func(*fwrules.HostPorts) {})},
		"portmap nftables":         {typ: "portmap", own: ports + `, "backend": "nftables"`, want: none},
		"portmap without ports":    {typ: "portmap", want: none},
		"portmap bit":              {typ: "portmap", own: ports + `, "markMasqBit": 4`, want: portmap(func(h *fwrules.HostPorts) { h.MarkMasqBit = 4 })},
		"portmap bad bit":          {typ: "portmap", own: ports + `, "markMasqBit": 32`, want: none},
		"portmap no snat":          {typ: "portmap", own: ports + `, "snat": false`, want: portmap(func(h *fwrules.HostPorts) { h.SNAT = false })},
		"portmap external":         {typ: "portmap", own: ports + `, "externalSetMarkChain": "M"`, want: portmap(func(h *fwrules.HostPorts) { h.SNAT = false })},
		"portmap external and bit": {typ: "portmap", own: ports + `, "externalSetMarkChain": "M", "markMasqBit": 4`, want: none},
		"firewall":                 {typ: "firewall", want: firewall(func(*fwrules.Forward) {})},
		"firewall firewalld runs":  {typ: "firewall", firewalld: true, want: firewall(func(f *fwrules.Forward) { f.IngressOnly = true })},
		"firewall iptables":        {typ: "firewall", own: `, "backend": "iptables"`, firewalld: true, want: firewall(func(*fwrules.Forward) {})},
		"firewall firewalld":       {typ: "firewall", own: `, "backend": "firewalld"`, want: firewall(func(f *fwrules.Forward) { f.IngressOnly = true })},
		"firewall admin": {typ: "firewall", own: `, "iptablesAdminChainName": "A", "ingressPolicy": "isolated"`,
			want: firewall(func(f *fwrules.Forward) { f.AdminChain, f.Ingress = "A", "isolated" })},
		"bridge": {typ: "bridge", want: none},
	} {
		r := Request{Type: tt.typ, IfName: "eth0", Config: config(tt.typ, tt.own), Firewalld: tt.firewalld}
		if got := r.Rules(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
	for _, bad := range []string{``, `{`, `{"type": "portmap"}`, `{"cniVersion": "1.0.0", "prevResult": {"ips": 1}}`} {
		if got := (Request{Type: "portmap", Config: []byte(bad)}).Rules(); !reflect.DeepEqual(got, none) {
			t.Errorf("%s: got %+v", bad, got)
		}
	}
}

func TestAsksForFirewalld(t *testing.T) {
	for own, want := range map[string]bool{``: true, `, "backend": "ip6tables"`: true, `, "backend": "iptables"`: false, `, "backend": "firewalld"`: false} {
		if got := (Request{Type: "firewall", Config: config("firewall", own)}).AsksForFirewalld(); got != want {
			t.Errorf("firewall%s: %t", own, got)
		}
	}
	if (Request{Type: "portmap", Config: config("portmap", "")}).AsksForFirewalld() {
		t.Error("portmap asks")
	}
}

func TestParseVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.9.1": "1.9.1", "1.1.1": "1.1.1", "v1.1.1+ds1": "1.1.1", "v0.9.1": "0.9.1",
		"v1.9.1+dirty": "", "v1.9.2-0.20260101000000-0123456789ab": "", "(devel)": "", "version unknown": "", "": "", "v1.9": "",
	} {
		if got := parse(version); got != want {
			t.Errorf("%q: got %q, want %q", version, got, want)
		}
	}
}

func TestKnownVersionsMake(t *testing.T) {
	for _, tt := range []struct {
		version, typ, config string
		want                 bool
	}{
		{"1.9.1", "portmap", `{}`, true},
		{"1.9.1", "bridge", `{}`, true},
		{"1.9.1", "bridge", `{"vlan": 5}`, false},
		{"1.9.1", "firewall", `{"ingressPolicy": "isolated"}`, true},
		{"1.6.0", "firewall", `{"ingressPolicy": "isolated"}`, true},
		{"1.5.1", "firewall", `{"ingressPolicy": "same-bridge"}`, false},
		{"1.5.1", "firewall", `{"ingressPolicy": "open"}`, true},
		{"0.9.1", "firewall", `{}`, true},
		{"0.9.1", "portmap", `{}`, true},
		{"0.8.7", "portmap", `{}`, false},
		{"1.10.0", "portmap", `{}`, false},
		{"2.0.0", "portmap", `{}`, false},
		{"1.9.1", "vrf", `{}`, false},
		{"1.9.1", "anothers", `{}`, false},
		{"", "portmap", `{}`, false},
	} {
		if got := makes(tt.version, tt.typ, []byte(tt.config)); got != tt.want {
			t.Errorf("%s %s %s: got %t", tt.typ, tt.version, tt.config, got)
		}
	}
}
