package firewall

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/plugin"
)

func lookup(string) plugin.Plugin { return Plugin{} }

// result returns the result of the plugin bridge.
func result(h plugintest.Host, addresses ...string) []byte {
	var ips []string
	for _, a := range addresses {
		ips = append(ips, fmt.Sprintf(`{"interface": 2, "address": %q}`, a))
	}
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "interfaces": [{"name": "br1"}, {"name": "veth0"}, {"name": "eth0", "sandbox": %q}],
		"ips": [%s], "routes": [{"dst": "0.0.0.0/0"}], "dns": {}}`, h.NetNS, strings.Join(ips, ","))
}

func call(h plugintest.Host, id, options string, addresses ...string) plugintest.Call {
	return plugintest.Call{
		Type: "firewall", ID: id, IfName: "eth0", NetNS: h.NetNS, Prev: result(h, addresses...),
		Config: fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "firewall"%s}`, options),
	}
}

func setups() map[string]string {
	const backend = `, "backend": "iptables"`
	return map[string]string{
		"open":        backend,
		"by default":  "",
		"admin chain": `, "iptablesAdminChainName": "OTHERS-ADMIN"`,
		"same-bridge": backend + `, "ingressPolicy": "same-bridge"`,
		"isolated":    backend + `, "ingressPolicy": "isolated"`,
	}
}

// TestInterchange: ours and theirs make the same objects from the same input,
// and pass on the same result. Each checks and deletes the other one's objects,
// and leaves those of others.
func TestInterchange(t *testing.T) {
	families := map[string][]string{
		"dual": {"10.1.0.2/24", "fd00:1::2/64"}, "IPv4": {"10.1.0.2/24", "10.1.0.3/24"}, "IPv6": {"fd00:1::2/64"}, "none": nil,
	}
	for _, variant := range plugintest.Variants() {
		for name, options := range setups() {
			for family, addresses := range families {
				if family != "dual" && name != "isolated" {
					continue
				}
				t.Run(variant+"/"+name+"/"+family, func(t *testing.T) {
					plugintest.UseIPTables(t, variant)
					interchange(t, options, addresses)
				})
			}
		}
	}
}

func interchange(t *testing.T, options string, addresses []string) {
	h, g := plugintest.NewHost(t), plugintest.NewHost(t)
	ours, theirs := plugintest.Ours(h.Host, lookup), plugintest.Theirs(t, g.Host)
	theirsHere, oursThere := plugintest.Theirs(t, h.Host), plugintest.Ours(g.Host, lookup)
	theirsHere.Must(t, "ADD", call(h, "c", `, "backend": "iptables"`, "10.1.0.20/24", "fd00:1::20/64"))
	theirs.Must(t, "ADD", call(g, "c", `, "backend": "iptables"`, "10.1.0.20/24", "fd00:1::20/64"))
	before := plugintest.Filters(t, h.Host).Without(shared)

	here, there := call(h, "c1", options, addresses...), call(g, "c1", options, addresses...)
	if got, want := h.Portable(t, ours.Must(t, "ADD", here)), g.Portable(t, theirs.Must(t, "ADD", there)); got != want {
		t.Errorf("result:\n%s\nwant:\n%s", got, want)
	}
	plugintest.NoLeak(t, plugintest.Filters(t, g.Host), plugintest.Filters(t, h.Host))
	for _, verb := range []string{"CHECK", "ADD", "CHECK", "DEL", "DEL"} {
		theirsHere.Must(t, verb, here)
		oursThere.Must(t, verb, there)
	}
	plugintest.NoLeak(t, before, plugintest.Filters(t, h.Host).Without(shared))
	plugintest.NoLeak(t, plugintest.Filters(t, h.Host), plugintest.Filters(t, g.Host))

	// Without a previous result nothing is known, and that is not an error.
	here.Prev, here.NetNS = nil, ""
	ours.Must(t, "DEL", here)
}

// shared reports whether a line stays after the last container.
func shared(line string) bool { return audit.Shared(line) || strings.Contains(line, "OTHERS-ADMIN") }

// TestCheckFindsEachDamage: CHECK detects each missing rule.
func TestCheckFindsEachDamage(t *testing.T) {
	for _, variant := range plugintest.Variants() {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := plugintest.NewHost(t)
			ours := plugintest.Ours(h.Host, lookup)
			c := call(h, "c1", `, "backend": "iptables", "ingressPolicy": "isolated"`, "10.1.0.2/24", "fd00:1::2/64")
			ours.Must(t, "ADD", c)
			damages := 0
			for _, line := range plugintest.Filters(t, h.Host) {
				tool, rest, _ := strings.Cut(line, " ")
				table, rule, _ := strings.Cut(rest, " ")
				spec, isRule := strings.CutPrefix(rule, "-A ")
				if !isRule {
					continue
				}
				damages++
				nettest.Run(t, h.Host, "sh", "-c", fmt.Sprintf("%s -t %s -D %s", tool, table, spec))
				err := ours.MustFail(t, "CHECK", c)
				if !strings.Contains(err.Error(), tool+": the rule -t "+table+" -A "+strings.Fields(spec)[0]+" ") {
					t.Errorf("without %s: %v", line, err)
				}
				ours.Must(t, "ADD", c) // repairs it
				ours.Must(t, "CHECK", c)
			}
			if damages != 2*10 {
				t.Errorf("there were %d rules", damages)
			}
		})
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	tests := map[string]struct{ options, want string }{
		"no policy": {`, "ingressPolicy": "closed"`, `ingressPolicy is "closed"`},
	}
	h := plugintest.NewHost(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := plugintest.Ours(h.Host, lookup).MustFail(t, "ADD", call(h, "c1", tt.options, "10.1.0.2/24"))
			if !strings.Contains(err.Error(), tt.want) || plugintest.Code(err) != 7 {
				t.Errorf("%v (code %d), want %s", err, plugintest.Code(err), tt.want)
			}
		})
	}
	noBridge := call(h, "c1", `, "ingressPolicy": "isolated"`)
	noBridge.Prev = []byte(`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}`)
	if err := plugintest.Ours(h.Host, lookup).MustFail(t, "ADD", noBridge); !strings.Contains(err.Error(), "needs a bridge") {
		t.Error(err)
	}
	noResult := call(h, "c1", "")
	noResult.Prev = nil
	for _, verb := range []string{"ADD", "CHECK"} {
		if err := plugintest.Ours(h.Host, lookup).MustFail(t, verb, noResult); plugintest.Code(err) != 7 {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
