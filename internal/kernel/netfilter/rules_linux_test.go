package netfilter

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// everything returns the rules of a container whose network has all features.
func everything(id string, n int) testRules {
	o := Owner{Network: "podnet", ContainerID: id, IfName: "eth0"}
	v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 16)
	v6 := netip.MustParsePrefix(fmt.Sprintf("fd00:1::%x/64", n))
	ports := []HostPort{{HostPort: uint16(10000 + n), ContainerPort: 80, Protocol: "tcp"}}
	return testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
		HostPorts:  []testPorts{{Owner: o, V4: v4, V6: v6, Ports: ports, SNAT: true}},
		Forward:    []testForward{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
	}
}

// wantLines compares lines as a whole.
func wantLines(t *testing.T, what string, got, want audit.Lines) {
	t.Helper()
	more, less := audit.Diff(want, got)
	expect.Unchanged(t, what, more, less)
}

// listing returns the output of nft -j, one line for each object, without
// handles.
func (h *host) listing() []string {
	h.t.Helper()
	out, err := exec.Command("nft", "-j", "list", "ruleset").CombinedOutput()
	expect.Must(h.t, err == nil, "%v: %s", err, out)
	var all struct {
		Nftables []map[string]map[string]any `json:"nftables"`
	}
	expect.NoError(h.t, json.Unmarshal(out, &all))
	var lines []string
	for _, thing := range all.Nftables {
		for _, properties := range thing {
			delete(properties, "handle")
		}
		line := expect.Value(json.Marshal(thing))(h.t)
		if _, about := thing["metainfo"]; !about {
			lines = append(lines, string(line))
		}
	}
	return lines
}

// rulesOf returns the rules of a table.
func (h *host) rulesOf(table nft.Table) (all []nft.Object) {
	h.t.Helper()
	expect.NoError(h.t, h.fw.sockets.Do(h.t.Context(), func(c *nft.Conn) error {
		return c.Rules(table, "", nil, func(r nft.Rule) error {
			all = append(all, r.Object(table))
			return nil
		})
	}))
	return all
}

// dumpTables returns the input with which nft restores the tables.
func (h *host) dumpTables(tables []nft.Table) string {
	h.t.Helper()
	var b strings.Builder
	for _, table := range tables {
		out, err := exec.Command("nft", append([]string{"list", "table"}, strings.Fields(table.String())...)...).CombinedOutput()
		expect.Must(h.t, err == nil, "%v: %s", err, out)
		b.WriteString("delete table " + table.String() + "\n" + string(out))
	}
	return b.String()
}

// testRules are the rules of an attachment, by the plugins that want them.
type testRules struct {
	Masquerade []testMasquerade
	HostPorts  []testPorts
	Forward    []testForward
	Spoof      []testSpoof
}

type testMasquerade struct {
	Owner
	Addresses []netip.Prefix
}

type testPorts struct {
	Owner
	V4, V6                     netip.Prefix
	Ports                      []HostPort
	SNAT, MasqAll, Conditional bool
}

type testForward struct {
	Owner
	Addresses                   []netip.Prefix
	AdminChain, Ingress, Bridge string
	IngressOnly                 bool
}

type testSpoof struct {
	Owner
	Port string
	MAC  net.HardwareAddr
}

func (r testRules) rules() (all []Rule) {
	for _, m := range r.Masquerade {
		all = append(all, m.PerAddress(Masquerade, m.Addresses)...)
	}
	for _, h := range r.HostPorts {
		var to []netip.Prefix
		for _, p := range []netip.Prefix{h.V4, h.V6} {
			if p.IsValid() {
				to = append(to, p)
			}
		}
		ports := h.Ports
		if len(ports) == 0 {
			ports = []HostPort{{}} // not known
		}
		for _, p := range ports {
			all = append(all, Rule{Owner: h.Owner, Kind: Publish, Addresses: to, Port: p, SNAT: h.SNAT, MasqAll: h.MasqAll, Conditional: h.Conditional})
		}
	}
	for _, f := range r.Forward {
		if !f.IngressOnly && len(f.Addresses) > 0 {
			for _, one := range f.PerAddress(Accept, f.Addresses) {
				one.AdminChain = f.AdminChain
				all = append(all, one)
			}
		}
		if f.Ingress != "" && f.Ingress != "open" {
			all = append(all, Rule{Owner: f.Owner, Kind: Ingress, Addresses: f.Addresses, Policy: f.Ingress, Bridge: f.Bridge})
		}
	}
	for _, s := range r.Spoof {
		all = append(all, Rule{Owner: s.Owner, Kind: Spoof, Link: s.Port, MAC: s.MAC})
	}
	return all
}
