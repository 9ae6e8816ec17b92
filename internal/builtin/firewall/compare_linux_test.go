package firewall

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
)

// flush is a firewall's reload. firewalld's own tables stay.
const flush = `for tool in iptables-legacy ip6tables-legacy iptables-nft ip6tables-nft; do $tool -F; $tool -X; done; nft delete table inet embedcni 2>/dev/null || true`

const (
	lost4 = `firewall host rule "forwarding for 10.1.0.2": wanted "accepted", found ""`
	lost6 = `firewall host rule "forwarding for fd00:1::2": wanted "accepted", found ""`
	// The policy's object ends with the bridge.
	lostPolicy = `firewall host rule "ingress policy isolated of br1": wanted "isolated", found ""`
)

// lines are differences without the errors of CHECK.
func lines(text string) (all []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "firewall host ") { // an error can have several lines
			line, _, _ = strings.Cut(line, "; fix; ")
			all = append(all, line)
		}
	}
	return all
}

func both(h plugintest.Host, options string) plugintest.Call {
	return call(h, "c1", options, "10.1.0.2/24", "fd00:1::2/64")
}

// TestAFlushedFirewallIsFoundAndRepaired, in both variants of iptables: the rules are as
// they were.
func TestAFlushedFirewallIsFoundAndRepaired(t *testing.T) {
	for name, tt := range map[string]struct {
		variant, options string
		detected         string
		want             []string
	}{
		"iptables nft":              {"nft", `, "backend": "iptables"`, "", []string{lost4, lost6}},
		"iptables legacy":           {"legacy", `, "backend": "iptables"`, "", []string{lost4, lost6}},
		"iptables, isolated":        {"nft", `, "backend": "iptables", "ingressPolicy": "isolated"`, "", []string{lost4, lost6, lostPolicy}},
		"iptables legacy, isolated": {"legacy", `, "backend": "iptables", "ingressPolicy": "isolated"`, "", []string{lost4, lost6, lostPolicy}},
		"detected iptables":         {"nft", ``, netfilter.DetectedIPTables, []string{lost4, lost6}},
		"native":                    {"nft", ``, netfilter.DetectedNative, nil}, // it drops nothing, so it accepts nothing
		"native, isolated":          {"nft", `, "ingressPolicy": "isolated"`, netfilter.DetectedNative, []string{lostPolicy}},
	} {
		t.Run(name, func(t *testing.T) {
			plugintest.UseIPTables(t, tt.variant)
			h := plugintest.NewHost(t)
			ctx := contract.With(t.Context(), contract.Given{Filters: netfilter.Options{Detected: tt.detected}, Bus: firewalld.Open("unix:path=" + t.TempDir() + "/none")})
			side, c := plugintest.Ours(h.Host, lookup), both(h, tt.options)
			run := func(verb string, c plugintest.Call) {
				t.Helper()
				expect.Value(side.Run(ctx, verb, c))(t)
			}
			run("ADD", c)
			was := plugintest.Filters(t, h.Host)
			nettest.Shell(t, h.Host, flush)
			found, left, err := plugintest.Compared(ctx, h.Host, lookup, c, plugintest.RepairHost)
			if err != nil || !slices.Equal(lines(found), tt.want) || left != "" {
				t.Errorf("found\n%s\nleft\n%s\nwant\n%s\n%v", found, left, strings.Join(tt.want, "\n"), err)
			}
			run("CHECK", c)
			plugintest.NoLeak(t, was, plugintest.Filters(t, h.Host))
		})
	}
}

// TestFirewalldHasForgotten: an address that firewalld has lost is added as by an ADD,
// so that the DEL removes it.
func TestFirewalldHasForgotten(t *testing.T) {
	h := plugintest.NewHost(t)
	s := firewalldtest.Start(t, h.Host)
	ctx := contract.With(t.Context(), contract.Given{Record: plugintest.NewMemory(), Bus: firewalld.Open(s.Address)})
	side, c := plugintest.Ours(h.Host, lookup), both(h, `, "backend": "firewalld", "ingressPolicy": "isolated"`)
	var err error
	if _, err = side.Run(ctx, "ADD", c); err != nil {
		t.Fatal(err)
	}
	s.AddSource("trusted", "192.0.2.0/24") // the administrator's
	zone, filters := s.Sources("trusted"), plugintest.Filters(t, h.Host)
	compared := func(extent plugintest.Extent) (found, left string) {
		t.Helper()
		found, left, err = plugintest.Compared(ctx, h.Host, lookup, c, extent)
		expect.NoError(t, err)
		return found, left
	}
	if found, _ := compared(plugintest.RepairHost); found != "" {
		t.Errorf("found %s", found)
	}

	const forgotten = `firewall host zone "10.1.0.2/32": wanted "trusted", found ""`
	s.RemoveSource("trusted", "10.1.0.2/32")
	found, left := compared(plugintest.RepairHost)
	if !slices.Equal(lines(found), []string{forgotten}) || left != "" || !strings.Contains(found, "firewalld has forgotten it") {
		t.Errorf("found\n%s\nleft\n%s", found, left)
	}
	s.RemoveSource("trusted", "10.1.0.2/32")
	s.RemoveSource("trusted", "fd00:1::2/128")
	nettest.Shell(t, h.Host, `nft flush set inet embedcni isolated`)
	found, left = compared(plugintest.RepairHost)
	if want := []string{forgotten, `firewall host zone "fd00:1::2/128": wanted "trusted", found ""`, lostPolicy}; !slices.Equal(lines(found), want) || left != "" {
		t.Errorf("found\n%s\nleft\n%s", found, left)
	}
	if now := s.Sources("trusted"); !slices.Equal(now, zone) {
		t.Errorf("in the zone are %q, and were %q", now, zone)
	}
	plugintest.NoLeak(t, filters, plugintest.Filters(t, h.Host))

	// An administrator has put it into another zone.
	s.RemoveSource("trusted", "10.1.0.2/32")
	s.AddSource("drop", "10.1.0.2/32")
	const moved = `firewall host zone "10.1.0.2/32": wanted "trusted", found "drop"; no fix: somebody has put the address into another zone`
	if found, left = compared(plugintest.RepairHost); !strings.HasPrefix(found, moved) || left != found {
		t.Errorf("found\n%s\nleft\n%s", found, left)
	}
	s.RemoveSource("drop", "10.1.0.2/32")
	compared(plugintest.RepairHost)
	expect.Value(side.Run(ctx, "DEL", c))(t)
	if now := s.Sources("trusted"); !slices.Equal(now, []string{"192.0.2.0/24"}) {
		t.Errorf("after DEL there are %q", now)
	}

	s.StopFirewalld()
	if _, _, err := plugintest.Compared(ctx, h.Host, lookup, c, plugintest.OnlyCompare); !errors.Is(err, firewalld.ErrNotRunning) {
		t.Errorf("without a firewalld: %v", err)
	}
}

// TestAnUnknownBackend: a reference plugin has decided by itself. Rules are made again
// where some are left; without any, where it would make them now.
func TestAnUnknownBackend(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	h := plugintest.NewHost(t)
	s := firewalldtest.StartBus(t, h.Host)
	ctx := contract.With(t.Context(), contract.Given{
		Record: plugintest.NewMemory(), Bus: firewalld.Open(s.Address), Filters: netfilter.Options{Executable: true},
	})
	theirs, c := plugintest.Theirs(t, h.Host), both(h, `, "ingressPolicy": "isolated"`)
	t.Setenv(firewalld.Variable, s.Address)
	compared := func() (found, left string) {
		t.Helper()
		found, left, err := plugintest.Compared(ctx, h.Host, lookup, c, plugintest.RepairHost)
		expect.NoError(t, err)
		return found, left
	}
	theirs.Must(t, "ADD", c)
	if found, left := compared(); found+left != "" {
		t.Errorf("found\n%s\nleft\n%s", found, left)
	}
	nettest.Shell(t, h.Host, flush)
	if found, left := compared(); !slices.Equal(lines(found), []string{lost4, lost6, lostPolicy}) || left != "" {
		t.Errorf("without rules: found\n%s\nleft\n%s", found, left)
	}
	if found, left := compared(); found+left != "" {
		t.Errorf("after the repair: found\n%s\nleft\n%s", found, left)
	}

	s.StartFirewalld() // which deletes the rules of iptables
	plugintest.Ours(h.Host, lookup).Must(t, "ADD", both(h, `, "backend": "iptables", "ingressPolicy": "isolated"`))
	nettest.Shell(t, h.Host, `ip6tables -F CNI-FORWARD`)
	if found, left := compared(); !slices.Contains(lines(found), lost6) || strings.Contains(found, "zone") || left != "" {
		t.Errorf("with some rules: found\n%s\nleft\n%s", found, left)
	}
	expect.Empty(t, "in the zone", s.Sources("trusted"))
	nettest.Shell(t, h.Host, flush)
	found, left := compared()
	want := []string{
		`firewall host zone "10.1.0.2/32": wanted "trusted", found ""`, `firewall host zone "fd00:1::2/128": wanted "trusted", found ""`, lostPolicy,
	}
	if got := lines(found); !slices.Equal(got, want) || left != "" {
		t.Errorf("with a firewalld: found\n%s\nleft\n%s", found, left)
	}
	if now := s.Sources("trusted"); len(now) != 2 {
		t.Errorf("in the zone are %q", now)
	}
	thaw := s.FreezeFirewalld()
	defer thaw()
	nettest.Shell(t, h.Host, flush)
	late, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if found, _, err := plugintest.Compared(late, h.Host, lookup, c, plugintest.OnlyCompare); err == nil {
		t.Errorf("a firewalld that hangs: found %s", found)
	}
}

// TestFlowsLiveThroughARepair.
func TestFlowsLiveThroughARepair(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := plugintest.NewHost(t)
			client, _ := plugintest.NetNS(t)
			nettest.Shell(t, h.Host, "sysctl -q net.ipv4.ip_forward=1")
			nettest.AddAddress(t, h.Host, "veth0", "10.1.0.1/24")
			nettest.AddAddress(t, h.Container, "eth0", "10.1.0.2/24")
			connect(t, h.Host, client)
			nettest.Shell(t, h.Container, "ip route add default via 10.1.0.1")
			side, c := plugintest.Ours(h.Host, lookup), call(h, "c1", `, "backend": "iptables"`, "10.1.0.2/24")
			side.Must(t, "ADD", c)
			nettest.Shell(t, h.Host, "iptables -P FORWARD DROP") // what firewall is for
			nettest.Serve(t, client, 7)
			var flows []*plugintest.Flow
			for _, network := range []string{"tcp", "udp"} {
				flows = append(flows, plugintest.NewFlow(t, h.Container, network, netip.MustParseAddrPort("192.0.2.2:7")))
			}
			nettest.Shell(t, h.Host, flush)
			expect.Fails(t, "packets pass without the rules", flows[1].Answer(200*time.Millisecond))
			found, left, err := plugintest.Compared(t.Context(), h.Host, lookup, c, plugintest.RepairHost)
			if err != nil || !slices.Equal(lines(found), []string{lost4}) || left != "" {
				t.Errorf("found\n%s\nleft\n%s\n%v", found, left, err)
			}
			for i, f := range flows {
				if err := f.Answer(10 * time.Second); err != nil {
					t.Errorf("flow %d: %v", i, err)
				}
			}
		})
	}
}

// connect joins a client to the host by a veth pair.
func connect(t *testing.T, host, client *netns.Handle) {
	t.Helper()
	nettest.Inside(t, host, func(nl *netlink.Handle) error {
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: nettest.Attrs("lan0"), PeerName: "lan1", PeerNamespace: netlink.NsFd(client.File().Fd())})
	})
	nettest.SetUp(t, host, "lan0")
	nettest.SetUp(t, client, "lan1")
	nettest.AddAddress(t, host, "lan0", "192.0.2.1/24")
	nettest.AddAddress(t, client, "lan1", "192.0.2.2/24")
	nettest.Shell(t, client, "ip route add 10.1.0.0/24 via 192.0.2.1")
}
