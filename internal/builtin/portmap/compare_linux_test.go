package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// backends are the forms of the executable's rules, with the variant of iptables.
var backends = map[string]struct{ variant, options string }{
	"nftables":        {"nft", `"backend": "nftables", `},
	"iptables nft":    {"nft", `"backend": "iptables", `},
	"iptables legacy": {"legacy", `"backend": "iptables", `},
}

func compared(t *testing.T, h plugintest.Host, c plugintest.Call, extent plugintest.Extent) (found, left string) {
	t.Helper()
	found, left, err := plugintest.Compared(t.Context(), h.Host, lookup, c, extent)
	expect.NoError(t, err)
	return found, left
}

// withoutErrors leaves out the errors of CHECK, which name the rule.
func withoutErrors(lines string) string {
	var all []string
	for line := range strings.SplitSeq(lines, "\n") {
		line, _, _ = strings.Cut(line, "; fix; ")
		all = append(all, line)
	}
	return strings.Join(all, "\n")
}

// flush is a firewall's reload.
const flush = `nft flush ruleset; for tool in iptables-legacy ip6tables-legacy; do for table in nat mangle filter raw; do
	$tool -t $table -F; $tool -t $table -X; done; done`

const (
	lostTCP = `portmap host port "tcp 8001": wanted "10.1.0.2:2, [fd00:1::2]:2", found ""`
	lostUDP = `portmap host port "udp 127.0.0.1:8002": wanted "10.1.0.2:3", found ""`
)

// twoPorts has a port of both families and one of the host's loopback.
func twoPorts() string { return port(8001, "tcp", "") + "," + port(8002, "udp", "127.0.0.1") }

// TestAFlushedFirewallIsFoundAndRepaired: the ruleset is as it was.
func TestAFlushedFirewallIsFoundAndRepaired(t *testing.T) {
	for _, backend := range []string{"", `"backend": "nftables", `} {
		for _, options := range []string{"", `"masqAll": true, `, `"snat": false, `} {
			t.Run(backend+options, func(t *testing.T) {
				h := host(t)
				side, c := plugintest.Ours(h.Host, lookup), call(h, backend+options, twoPorts(), v4, v6)
				side.Must(t, "ADD", c)
				was := plugintest.Filters(t, h.Host)
				if found, left := compared(t, h, c, plugintest.RepairHost); found+left != "" {
					t.Errorf("found\n%s\nleft\n%s", found, left)
				}
				nettest.Shell(t, h.Host, flush)
				found, left := compared(t, h, c, plugintest.RepairHost)
				expect.Same(t, "found", withoutErrors(found), lostTCP+"\n"+lostUDP)
				expect.Same(t, "left", left, "")
				plugintest.NoLeak(t, was, plugintest.Filters(t, h.Host))
				side.Must(t, "CHECK", c)
			})
		}
	}
}

// TestASingleRuleIsFoundAndRepaired, beside a neighbour's and an administrator's, which
// are untouched: the ruleset is as it was.
func TestASingleRuleIsFoundAndRepaired(t *testing.T) {
	h := host(t)
	side, c := plugintest.Ours(h.Host, lookup), call(h, "", twoPorts(), v4, v6)
	neighbour := call(h, "", port(7000, "tcp", ""), "10.1.0.9/24", "fd00:1::9/64")
	neighbour.ID = "neighbour"
	side.Must(t, "ADD", neighbour)
	side.Must(t, "ADD", c)
	nettest.Shell(t, h.Host, `iptables -t nat -A PREROUTING -p tcp --dport 99 -j RETURN -m comment --comment administrator`)
	was := plugintest.Filters(t, h.Host)
	all := damages(was)
	if len(all) < 4 {
		t.Fatalf("%d rules name the container:\n%s", len(all), strings.Join(was, "\n"))
	}
	for _, damage := range all {
		nettest.Shell(t, h.Host, damage)
		found, left := compared(t, h, c, plugintest.RepairHost)
		if !strings.HasPrefix(found, "portmap host port") || left != "" {
			t.Errorf("%q: found %q, left %q", damage, found, left)
		}
		plugintest.NoLeak(t, was, plugintest.Filters(t, h.Host))
	}
}

// TestRulesOfAnExecutable, in each form: none is missed, and one that is lost, in the
// container's chains or in those that all containers share, is found. What does the same
// is put into this module's table, where the sweep finds it; a second repair adds nothing.
func TestRulesOfAnExecutable(t *testing.T) {
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			plugintest.UseIPTables(t, b.variant)
			h := host(t)
			theirs, c := plugintest.Theirs(t, h.Host), call(h, b.options, twoPorts(), v4, v6)
			neighbour := call(h, b.options, port(7000, "tcp", ""), "10.1.0.9/24", "fd00:1::9/64")
			neighbour.ID = "neighbour"
			theirs.Must(t, "ADD", neighbour)
			theirs.Must(t, "ADD", c)
			ctx := contract.With(t.Context(), contract.Given{Record: plugintest.NewMemory(), Filters: netfilter.Options{Executable: true}})
			compared := func() (found, left string) {
				t.Helper()
				found, left, err := plugintest.Compared(ctx, h.Host, lookup, c, plugintest.RepairHost)
				expect.NoError(t, err)
				return found, left
			}
			if found, left := compared(); found+left != "" {
				t.Errorf("found\n%s\nleft\n%s", found, left)
			}
			was := plugintest.Filters(t, h.Host)
			all := damages(was)
			if len(all) < 4 {
				t.Fatalf("%d rules name the container:\n%s", len(all), strings.Join(was, "\n"))
			}
			for _, damage := range all {
				nettest.Shell(t, h.Host, damage)
				found, left := compared()
				if !strings.HasPrefix(found, "portmap host port") || left != "" {
					t.Errorf("%q: found %q, left %q", damage, found, left)
				}
				repaired := plugintest.Filters(t, h.Host)
				if found, _ := compared(); found != "" {
					t.Errorf("%q: found %q after the repair", damage, found)
				}
				plugintest.NoLeak(t, repaired, plugintest.Filters(t, h.Host))
				theirs.Must(t, "DEL", c)
				sweep(t, h, "c1")
				for _, line := range plugintest.Filters(t, h.Host) {
					if strings.Contains(line, "10.1.0.2") || strings.Contains(line, "fd00:1::2") || strings.Contains(line, `"c1"`) {
						t.Errorf("%q: left is %s", damage, line)
					}
				}
				theirs.Must(t, "ADD", c)
				plugintest.NoLeak(t, was.Without(ours), plugintest.Filters(t, h.Host).Without(ours))
			}
		})
	}
}

// ours reports whether a line of the ruleset is of this module's table, which stays, and
// is no element, which goes with its container.
func ours(line string) bool {
	return strings.Contains(line, "inet embedcni") && !strings.HasPrefix(line, "nft element")
}

// sweep deletes all rules of a container.
func sweep(t *testing.T, h plugintest.Host, id string) {
	t.Helper()
	target := netfilter.Target{Owner: netfilter.Owner{Network: "podnet", ContainerID: id, IfName: "eth0"}, Thorough: true}
	plan := expect.Value(netfilter.Find(t.Context(), netfilter.Open(h.Host, netfilter.Options{}), target))(t)
	expect.NoError(t, plan.Apply(t.Context()))
}

// damages returns arguments of sh that delete one rule or element of the container's
// each.
func damages(rules audit.Lines) (all []string) {
	seen := map[string]bool{}
	for _, line := range rules {
		words := strings.Fields(line)
		named := strings.Contains(line, `comment "c1"`) || strings.Contains(line, `id: c1`)
		isSaved := strings.Contains(line, " nat -A ") && (strings.Contains(line, "CNI-HOSTPORT") || strings.Contains(line, "CNI-DN-"))
		if seen[line] || !named && !isSaved || strings.Contains(line, "7000") || strings.Contains(line, "neighbour") {
			continue
		}
		seen[line] = true
		switch {
		case words[0] == "ip6tables-nft" && strings.Contains(line, "8002"):
			// It leads to no rule: the port is one of IPv4 alone.
		case words[0] == "ip6tables-legacy":
			// It takes a rule for another that differs in the port.
		case words[0] != "nft":
			if table, spec, ok := strings.Cut(strings.TrimPrefix(line, words[0]+" "), " -A "); ok {
				all = append(all, fmt.Sprintf("%s -t %s -D %s", words[0], table, spec))
			}
		case words[1] == "element":
			key, _, _ := strings.Cut(strings.Join(words[5:], " "), " comment ")
			all = append(all, "nft delete element "+strings.Join(words[2:5], " ")+" { "+key+" }")
		case words[1] == "rule":
			chain := strings.Join(words[2:5], " ")
			all = append(all, fmt.Sprintf(`nft delete rule %s handle $(nft -a list chain %[1]s | grep -F '%s' | sed 's/.*# handle //')`,
				chain, strings.Join(words[5:], " ")))
		}
	}
	return all
}

// TestTheSettingForLoopbackAddressesIsRepaired: CHECK passes over it, as ever.
func TestTheSettingForLoopbackAddressesIsRepaired(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	const want = `portmap host sysctl "net/ipv4/conf/veth0/route_localnet": wanted "1", found "0"; fix`
	for options, want := range map[string]string{"": want, `"snat": false, `: ""} {
		h := host(t)
		side, c := plugintest.Ours(h.Host, lookup), call(h, options, twoPorts(), v4)
		side.Must(t, "ADD", c)
		nettest.Shell(t, h.Host, "echo 0 > /proc/sys/net/ipv4/conf/veth0/route_localnet")
		side.Must(t, "CHECK", c)
		if found, left := compared(t, h, c, plugintest.RepairHost); strings.TrimSuffix(found, "; -") != want || left != "" {
			t.Errorf("%s: found %q, left %q", options, found, left)
		}
		var value []byte
		if err := h.Host.Do(func() (err error) {
			value, err = os.ReadFile("/proc/sys/net/ipv4/conf/veth0/route_localnet")
			return err
		}); err != nil || (strings.TrimSpace(string(value)) == "1") != (want != "") {
			t.Errorf("%s: it is %s, %v", options, value, err)
		}
	}
	h := host(t)
	side, c := plugintest.Ours(h.Host, lookup), call(h, "", twoPorts(), v4)
	side.Must(t, "ADD", c)
	// Another interface leads there as long as the container's own is missing.
	nettest.AddBridge(t, h.Host, "uplink")
	nettest.SetUp(t, h.Host, "uplink")
	for _, script := range []string{"ip route flush 10.1.0.0/24", "ip route add default dev uplink"} {
		nettest.Shell(t, h.Host, script)
		if found, _ := compared(t, h, c, plugintest.RepairHost); found != "" {
			t.Errorf("after %s: found %s", script, found)
		}
	}
}

// TestAPortOfSomebodyElseIsReported, and not taken from him.
func TestAPortOfSomebodyElseIsReported(t *testing.T) {
	h := host(t)
	side, c := plugintest.Ours(h.Host, lookup), call(h, "", port(8001, "tcp", ""), v4)
	side.Must(t, "ADD", c)
	other := call(h, "", port(8001, "tcp", ""), "10.1.0.9/24")
	other.ID = "other"
	nettest.Shell(t, h.Host, flush)
	side.Must(t, "ADD", other)
	was := plugintest.Filters(t, h.Host)
	found, left := compared(t, h, c, plugintest.RepairHost)
	if !strings.HasPrefix(found, `portmap host port "tcp 8001": wanted "10.1.0.2:2", found "`) || !strings.Contains(found, "no fix: the port belongs to somebody else now") || !strings.Contains(found, "other") {
		t.Errorf("found %s", found)
	}
	if strings.Contains(left, "; fix;") || !strings.Contains(left, "no fix") {
		t.Errorf("left %s", left)
	}
	removed, _ := audit.Diff(plugintest.Filters(t, h.Host), was)
	if len(removed) > 0 && strings.Contains(strings.Join(removed, "\n"), "8001") {
		t.Errorf("the other one's port has changed: %s", removed)
	}
	side.Must(t, "CHECK", other)
}

// TestFlowsLiveThroughARepair: neither is their translation forgotten.
func TestFlowsLiveThroughARepair(t *testing.T) {
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			plugintest.UseIPTables(t, b.variant)
			h := host(t)
			nettest.AddAddress(t, h.Container, "eth0", v4)
			ports := `{"hostPort": 8001, "containerPort": 7, "protocol": "tcp"}, {"hostPort": 8001, "containerPort": 7, "protocol": "udp"}`
			c := call(h, b.options, ports, v4)
			plugintest.Theirs(t, h.Host).Must(t, "ADD", c)
			nettest.Serve(t, h.Container, 7)
			flows := map[string]*plugintest.Flow{}
			for _, network := range []string{"tcp", "udp"} {
				flows[network] = plugintest.NewFlow(t, h.Host, network, netip.MustParseAddrPort("10.1.0.1:8001"))
			}
			before := tracked(t, h.Host)
			nettest.Shell(t, h.Host, flush)
			if found, left := compared(t, h, c, plugintest.RepairHost); found == "" || left != "" {
				t.Errorf("found %s, left %s", found, left)
			}
			expect.Same(t, "the flows were", tracked(t, h.Host), before)
			for network, f := range flows {
				if err := f.Answer(10 * time.Second); err != nil {
					t.Errorf("%s: %v", network, err)
				}
				plugintest.NewFlow(t, h.Host, network, netip.MustParseAddrPort("10.1.0.1:8001"))
			}
		})
	}
}

// TestAViewWithoutRouting: a list of routes does not say which one the kernel uses.
func TestAViewWithoutRouting(t *testing.T) {
	h := host(t)
	side, c := plugintest.Ours(h.Host, lookup), call(h, "", twoPorts(), v4)
	side.Must(t, "ADD", c)
	nettest.Shell(t, h.Host, "echo 0 > /proc/sys/net/ipv4/conf/veth0/route_localnet")
	expect.NoError(t, plugintest.Comparing(t.Context(), h.Host, lookup, c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
		v, done, err := contract.Kernel(ctx, r)
		if err != nil {
			return err
		}
		v.Host = struct{ contract.Host }{v.Host}
		found, err := p.Compare(ctx, r, v)
		if len(found) != 1 || found[0].Kind != contract.Sysctl {
			t.Errorf("found %s", plugintest.Lines(found))
		}
		return errors.Join(err, done())
	}))
}
