package netconf_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netconf"
)

// generator makes random networks.
type generator struct{ *rand.Rand }

func (g generator) yes() bool { return g.IntN(2) == 0 }

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

// network makes a valid network. One that is to run has only what every kernel can do.
func (g generator) network(n int, toRun bool, dataDir string) netconf.Network {
	net := netconf.Network{Name: fmt.Sprint("net-", n), Version: pick(g, "", "0.4.0", "1.0.0", "1.1.0"), DisableGC: g.yes()}
	var main netconf.Plugin
	masquerade := g.yes()
	local := g.local(n, dataDir)
	mtu := pick(g, 0, 1280+g.IntN(220))
	extra := map[string]any{}
	if g.yes() {
		extra["dns"] = types.DNS{Nameservers: []string{"10.0.0.53", "fd00::53"}, Search: []string{"example"}}
	}
	if masquerade && g.yes() {
		extra["ipMasqBackend"] = pick(g, "iptables", "nftables")
	}
	ptp := g.IntN(3) == 0
	if ptp {
		main = netconf.PTP{Masquerade: masquerade, MTU: mtu, IPAM: local, Extra: extra}
	} else {
		b := netconf.Bridge{
			Name: fmt.Sprint("b", n), Gateway: g.yes(), DefaultGateway: !local.DefaultRoutes && g.yes(), ForceAddress: g.yes(), Hairpin: g.yes(),
			Masquerade: masquerade, MTU: mtu, IPAM: local, Extra: extra,
		}
		extra["portIsolation"], extra["promiscMode"] = g.yes(), !b.Hairpin && g.yes()
		if !toRun {
			extra["vlan"], extra["macspoofchk"] = g.IntN(4095), g.yes()
		}
		main = b
	}
	net.Plugins = []netconf.Plugin{main}
	firewall := netconf.Firewall{Backend: pick(g, "", "iptables"), AdminChain: pick(g, "", "ADMIN-"+fmt.Sprint(n))}
	if !ptp {
		firewall.IngressPolicy = pick(g, "", "open", "same-bridge", "isolated")
	}
	snat := g.yes()
	portmap := netconf.PortMap{Extra: map[string]any{"snat": snat, "masqAll": snat && g.yes()}}
	if g.yes() {
		portmap.Extra["backend"] = pick(g, "iptables", "nftables")
	}
	bandwidth := netconf.Bandwidth{Extra: pick(g, nil, map[string]any{"ingressRate": 8_000_000, "ingressBurst": 800_000}, map[string]any{"egressRate": 1 << 30, "egressBurst": 1 << 25})}
	tuning := netconf.Tuning{Extra: pick(g, nil, map[string]any{"sysctl": map[string]string{"net.ipv4.conf.all.rp_filter": "0"}})}
	chained := []netconf.Plugin{firewall, portmap, bandwidth, tuning}
	g.Shuffle(len(chained), func(i, j int) { chained[i], chained[j] = chained[j], chained[i] })
	net.Plugins = append(net.Plugins, chained[:g.IntN(5)]...)
	return net
}

func (g generator) local(n int, dataDir string) netconf.HostLocal {
	h := netconf.HostLocal{DefaultRoutes: g.yes(), DataDir: dataDir}
	v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + n), 0, 0}), 16+g.IntN(9))
	one := netconf.Range{Subnet: v4}
	if g.yes() {
		one.First, one.Last = netip.AddrFrom4([4]byte{10, byte(100 + n), 0, 16}), netip.AddrFrom4([4]byte{10, byte(100 + n), 0, 31})
	}
	if g.yes() {
		one.Gateway = netip.AddrFrom4([4]byte{10, byte(100 + n), 0, 9})
	}
	six := netconf.Range{Subnet: netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", 100+n))}
	h.Ranges = pick(g, []netconf.Range{one}, []netconf.Range{one, six}, []netconf.Range{six, one}, []netconf.Range{six})
	if g.yes() {
		r := netconf.Route{Dst: netip.MustParsePrefix("192.0.2.0/24")}
		if h.Ranges[0].Subnet == six.Subnet {
			r.Dst = netip.MustParsePrefix("2001:db8::/32")
		}
		h.Routes = append(h.Routes, r)
	}
	return h
}

func seeded(t *testing.T) generator {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return generator{rand.New(rand.NewPCG(seed, 0))}
}

// TestAcceptedByLoaders: libcni and this module load what is rendered, and know every
// field.
func TestAcceptedByLoaders(t *testing.T) {
	g := seeded(t)
	for n := range 500 {
		wantLoaded(t, expect.Value(g.network(n%100, false, "").Render())(t))
	}
	wantLoaded(t, expect.Value(full().Render())(t))
}

func wantLoaded(t *testing.T, data []byte) {
	t.Helper()
	theirs, err := libcni.NetworkConfFromBytes(data)
	if err != nil || len(theirs.Plugins) == 0 {
		t.Fatalf("libcni: %v\n%s", err, data)
	}
	r, err := cni.New(cni.WithConfListBytes(data))
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	c := r.GetConfig()
	if c.Networks[0].Config.Name != theirs.Name || len(c.Networks[0].Config.Plugins) != len(theirs.Plugins) {
		t.Fatalf("%+v\n%s", c.Networks[0].Config, data)
	}
}

// TestAcceptedByPlugins: the reference plugins and the built-in ones attach, check and
// detach a container with what is rendered.
func TestAcceptedByPlugins(t *testing.T) {
	g := seeded(t)
	h := testhost.NewReal(t)
	for n := range 10 {
		data := expect.Value(g.network(n, true, h.Path("ipam")).Render())(t)
		for kind, opts := range map[string][]cni.Opt{"reference": nil, "built-in": {cni.WithBuiltinPlugins()}} {
			id := fmt.Sprintf("c%d-%s", n, kind)
			path := h.Container(id)
			r := h.Real(append(opts, cni.WithConfListBytes(data))...)
			before := h.Audit()
			_, err := r.Setup(t.Context(), id, path, testhost.MapPort(int32(20000+n)))
			if err == nil {
				err = r.Check(t.Context(), id, path)
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", kind, err, data)
			}
			expect.NoError(t, r.Remove(t.Context(), id, path))
			left, gone := h.Left(before)
			// The administrator's chain stays, as CNI-ADMIN does.
			left = left.Without(func(line string) bool { return strings.Contains(line, "ADMIN-") })
			expect.Unchanged(t, "host", left, gone)
		}
	}
}

// TestASetupAsksForAddresses: what a Setup asks of a network of this package, it gets.
func TestASetupAsksForAddresses(t *testing.T) {
	h := testhost.NewReal(t)
	local := func(subnet string) netconf.HostLocal {
		return netconf.HostLocal{Ranges: []netconf.Range{{Subnet: prefix(subnet)}}, DataDir: h.Path("ipam")}
	}
	for kind, opts := range map[string][]cni.Opt{"reference": nil, "built-in": {cni.WithBuiltinPlugins()}} {
		for name, c := range map[string]struct {
			plugins []netconf.Plugin
			mac     string
		}{
			"bridge": {[]netconf.Plugin{netconf.Bridge{Name: "b0", IPAM: local("10.9.0.0/24")}}, "02:00:00:00:00:77"},
			"ptp":    {[]netconf.Plugin{netconf.PTP{IPAM: local("10.9.0.0/24")}, netconf.Tuning{}}, "02:00:00:00:00:77"},
		} {
			id := name + "-" + kind
			path := h.Container(id)
			n := netconf.Network{Name: "n" + id, Plugins: c.plugins}
			r := h.Real(append(opts, cni.WithConfListBytes(expect.Value(n.Render())(t)))...)
			result, err := r.Setup(t.Context(), id, path, cni.WithCapabilityIPs("10.9.0.77"), cni.WithCapabilityMAC(c.mac))
			expect.NoError(t, err)
			if err == nil {
				expect.Same(t, id, result.IPv4().IP().String(), "10.9.0.77")
				expect.Same(t, id, result.Interfaces["eth0"].Mac, c.mac)
			}
			expect.NoError(t, r.Remove(t.Context(), id, path))
		}
	}
}

// TestWrittenNetworkIsFollowed: a Watch loads what Write writes, and nothing when it
// writes nothing.
func TestWrittenNetworkIsFollowed(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	h := testhost.New(t)
	r := h.Runtime()
	expect.Is(t, r.Load(cni.WithAllConf), cni.ErrCNINotInitialized)
	ctx, stop := context.WithCancel(t.Context())
	events, ended := make(chan netconf.WatchEvent, 100), make(chan error, 1)
	go func() {
		ended <- netconf.Watch(ctx, r, netconf.WatchOptions{Settle: time.Millisecond, Report: func(e netconf.WatchEvent) { events <- e }})
	}()
	expect.Same(t, "at first", expect.Await(t, "a look", events).Kind, netconf.Kept)
	d := netconf.Dir{Path: h.Path("net.d"), StateDir: h.Path("state")}
	n := netconf.Network{Name: "apps", Plugins: []netconf.Plugin{netconf.Bridge{Name: "apps0", IPAM: netconf.HostLocal{Ranges: []netconf.Range{netconf.AnyIPv4()}}}}}
	w := expect.Value(d.Write(ctx, "10-apps.conflist", n))(t)
	for e := range events {
		if e.Kind == netconf.Loaded {
			expect.Same(t, "added", e.Added, []string{"apps"})
			break
		}
	}
	expect.NoError(t, d.Remove(ctx, "10-apps.conflist", w.Network.Name))
	for e := range events {
		if e.Kind == netconf.Unloaded {
			break
		}
	}
	stop()
	expect.NoError(t, expect.Await(t, "the end", ended))
}

// FuzzRender: what is rendered is loaded, whatever the texts in it.
func FuzzRender(f *testing.F) {
	f.Add("apps", "apps0", "ADMIN", `{"type": "x"}`, "key", "10.1.0.0/16")
	f.Add("a.b-c_d", "b<&>", "É", `{"type": "x", "type": "y", "ipam": {"type": ""}}`, "plugins", "fd00::/64")
	f.Add("", "\xff", "A\x00", `{"TYPE": "/"}`, "Name", "10.1.0.0/31")
	f.Add("n", "b0", "", `{"type": "x", "capabilities": {"a": "b"}}`, "cniVersions", "::ffff:1.2.3.0/120")
	f.Fuzz(func(t *testing.T, name, bridge, chain, raw, key, subnet string) {
		p, _ := netip.ParsePrefix(subnet)
		data, err := netconf.Network{Name: name, Extra: map[string]any{key: raw}, Plugins: []netconf.Plugin{
			netconf.Bridge{Name: bridge, IPAM: netconf.HostLocal{Ranges: []netconf.Range{{Subnet: p}}}, Extra: map[string]any{key: chain}},
			netconf.Firewall{AdminChain: chain}, netconf.Raw(raw),
		}}.Render()
		if err != nil {
			return
		}
		if _, err := libcni.NetworkConfFromBytes(data); err != nil {
			t.Errorf("libcni: %v\n%s", err, data)
		}
		if _, err := cni.New(cni.WithConfListBytes(data)); err != nil {
			t.Errorf("%v\n%s", err, data)
		}
	})
}
