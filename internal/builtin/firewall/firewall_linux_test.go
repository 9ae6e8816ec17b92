package firewall

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
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

// TestRulesOfAnExecutable: none is missed. One that is lost, the container's or one that
// all containers share, is found, and what does the same is made in this module's form.
func TestRulesOfAnExecutable(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for name, options := range map[string]string{
			"by default": "", "admin chain": `, "iptablesAdminChainName": "OTHERS-ADMIN"`,
			"same-bridge": `, "backend": "iptables", "ingressPolicy": "same-bridge"`, "isolated": `, "backend": "iptables", "ingressPolicy": "isolated"`,
		} {
			t.Run(variant+"/"+name, func(t *testing.T) {
				plugintest.UseIPTables(t, variant)
				h := plugintest.NewHost(t)
				theirs, c := plugintest.Theirs(t, h.Host), call(h, "c1", options, "10.1.0.2/24", "fd00:1::2/64")
				theirs.Must(t, "ADD", c)
				ctx := contract.With(t.Context(), contract.Given{
					Record: plugintest.NewMemory(), Filters: netfilter.Options{Executable: true},
					Bus: firewalld.Open("unix:path=" + t.TempDir() + "/none"),
				})
				compared := func() (found, left string) {
					t.Helper()
					found, left, err := plugintest.Compared(ctx, h.Host, lookup, c, plugintest.RepairHost)
					expect.NoError(t, err)
					return found, left
				}
				if found, left := compared(); found+left != "" {
					t.Errorf("found\n%s\nleft\n%s", found, left)
				}
				for _, line := range plugintest.Filters(t, h.Host) {
					del, isRule := deletion(line)
					if !isRule || strings.Contains(line, "-j RETURN") || strings.Contains(line, "admin overrides") {
						continue // it has no effect on this container
					}
					nettest.Shell(t, h.Host, del)
					if found, left := compared(); !strings.HasPrefix(found, "firewall host rule") || left != "" {
						t.Errorf("without %s: found\n%s\nleft\n%s", line, found, left)
					}
					if found, _ := compared(); found != "" {
						t.Errorf("without %s: after the repair found\n%s", line, found)
					}
					remove(t, h) // all of ours
					theirs.Must(t, "DEL", c)
					theirs.Must(t, "ADD", c)
				}
			})
		}
	}
}

// deletion returns the command that deletes a rule of iptables.
func deletion(line string) (command string, isRule bool) {
	tool, rest, _ := strings.Cut(line, " ")
	table, rule, _ := strings.Cut(rest, " ")
	spec, isRule := strings.CutPrefix(rule, "-A ")
	return fmt.Sprintf("%s -t %s -D %s", tool, table, spec), isRule
}

// remove deletes all rules of this module's form.
func remove(t *testing.T, h plugintest.Host) {
	t.Helper()
	for _, line := range plugintest.Filters(t, h.Host) {
		if del, isRule := deletion(line); isRule && strings.Contains(line, "embedcni") {
			nettest.Shell(t, h.Host, del)
		}
	}
	nettest.Shell(t, h.Host, "nft delete table inet embedcni || true")
}

// TestTheAcceptIsTheNetworks: a subnet has two rules, behind the administrator's, and the
// second container adds none. An ADD puts back a missing rule, and leaves the others.
func TestTheAcceptIsTheNetworks(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := plugintest.NewHost(t)
			ours := plugintest.Ours(h.Host, lookup)
			c := call(h, "c1", `, "backend": "iptables"`, "10.1.0.2/24", "fd00:1::2/64")
			nettest.Shell(t, h.Host, `for tool in iptables ip6tables; do $tool -N CNI-ADMIN; $tool -A CNI-ADMIN -p tcp --dport 25 -j DROP; done`)
			ours.Must(t, "ADD", c)
			was := plugintest.Filters(t, h.Host)
			nettest.Shell(t, h.Host, `set -- CNI-ADMIN RELATED,ESTABLISHED '-s 10.1.0.0/24'
				iptables -S CNI-FORWARD | grep ^-A | while read rule; do case "$rule" in *"$1"*) shift;; *) echo "$rule, want $1"; exit 1;; esac; done`)
			rules := was.Without(func(l string) bool { return !strings.Contains(l, "-A CNI-FORWARD") })
			if len(rules) != 6 {
				t.Fatalf("the rules are\n%s", strings.Join(rules, "\n"))
			}
			ours.Must(t, "ADD", call(h, "c2", `, "backend": "iptables"`, "10.1.0.3/24", "fd00:1::3/64"))
			plugintest.NoLeak(t, was, plugintest.Filters(t, h.Host))
			for _, line := range rules {
				del, _ := deletion(line)
				nettest.Shell(t, h.Host, del)
				if err := ours.MustFail(t, "CHECK", c); !strings.Contains(err.Error(), "CNI-FORWARD") {
					t.Errorf("without %s: %v", line, err)
				}
				ours.Must(t, "ADD", c) // repairs it
				ours.Must(t, "CHECK", c)
			}
			nettest.Shell(t, h.Host, `iptables -F FORWARD; ip6tables -F FORWARD`)
			ours.MustFail(t, "CHECK", c)
			ours.Must(t, "ADD", c)
			expect.Same(t, "rules", plugintest.Filters(t, h.Host), was)
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
