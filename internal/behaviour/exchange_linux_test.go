package behaviour_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// exchanged is a network with each kind of rules, and what libcni takes for a container.
func (h *realHost) exchanged(masq, portmap string) (conf []byte, rt *libcni.RuntimeConf) {
	h.T.Helper()
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + masq + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
	return c.Conf("podnet", "1.0.0", h.Path("ipam")), &libcni.RuntimeConf{
		ContainerID: "c1", IfName: "eth0", NetNS: h.Container("c1"),
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
	}
}

func (h *realHost) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{testhost.ReferencePlugins(h.T)}, h.Path("state"), nil)
}

// TestReferencePluginsDetachWhatBuiltInPluginsAttached: their DELs succeed, although they
// know none of the rules. Remove deletes these then, and those of nobody else.
func TestReferencePluginsDetachWhatBuiltInPluginsAttached(t *testing.T) {
	for _, variant := range plugintest.Variants() {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := newRealHost(t)
			conf, rt := h.exchanged("", "")
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins())
			before := h.Audit()
			_, err := r.Setup(t.Context(), "c1", rt.NetNS, testhost.MapPort(8080))
			expect.NoError(t, err)
			list, err := libcni.NetworkConfFromBytes(conf)
			expect.NoError(t, err)
			expect.NoError(t, h.libcni().DelNetworkList(t.Context(), list, rt))
			expect.NoError(t, r.Remove(t.Context(), "c1", rt.NetNS))
			h.WantClean(before)
		})
	}
}

// TestRulesOfReferencePluginsAreRemovedWithoutThem: what executables attached, in each of
// their forms and for a program that has no record, is removed by built-in plugins and the sweep.
func TestRulesOfReferencePluginsAreRemovedWithoutThem(t *testing.T) {
	for _, tt := range [][2]string{{"nft", "iptables"}, {"legacy", "iptables"}, {"nft", "nftables"}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			plugintest.UseIPTables(t, tt[0])
			h := newRealHost(t)
			conf, rt := h.exchanged(fmt.Sprintf(`"ipMasqBackend": %q, `, tt[1]), fmt.Sprintf(`"backend": %q, `, tt[1]))
			list, err := libcni.NetworkConfFromBytes(conf)
			expect.NoError(t, err)
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins(), cni.WithPluginDir([]string{h.Path("none")}))
			before := h.Audit()
			_, err = h.libcni().AddNetworkList(t.Context(), list, rt)
			expect.NoError(t, err)
			expect.NoError(t, r.Remove(t.Context(), "c1", rt.NetNS))
			h.WantClean(before)
		})
	}
}

// TestContainersOfEarlierVersions: their built-in plugins made the rules of the reference
// plugins where a backend was named. Such a container is adopted, healthy, repaired after a flush,
// and removed, and so is the next to it.
func TestContainersOfEarlierVersions(t *testing.T) {
	for _, tt := range [][2]string{{"nft", "iptables"}, {"legacy", "iptables"}, {"nft", "nftables"}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			plugintest.UseIPTables(t, tt[0])
			h := newRealHost(t)
			conf, rt := h.exchanged(fmt.Sprintf(`"ipMasqBackend": %q, `, tt[1]), fmt.Sprintf(`"backend": %q, `, tt[1]))
			before := h.Audit()
			old := h.Runtime(cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}), cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(conf))
			for i, id := range []string{"c1", "c2"} {
				path := rt.NetNS
				if i > 0 {
					path = h.Container(id)
				}
				_, err := old.Setup(t.Context(), id, path, testhost.MapPort(int32(8080+i)))
				expect.NoError(t, err)
			}
			builtIn := func(r *record.Record) {
				all := r.Attachments[0].Plugins
				for i := range all {
					all[i] = record.Plugin{Type: all[i].Type, Kind: record.KindBuiltIn}
					if all[i].Type == "firewall" {
						all[i].Backend = "iptables"
					}
				}
			}
			h.ChangeRecord("c1", builtIn)
			h.ChangeRecord("c2", builtIn)
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")))
			healthy := func(when string) {
				t.Helper()
				health, err := r.Health(t.Context(), cni.HealthOptions{})
				expect.NoError(t, err)
				for _, id := range []string{"c1", "c2"} {
					if of, _ := health.Of(id); of.State != cni.StateHealthy {
						t.Errorf("%s: %s: %v", when, id, of)
					}
				}
			}
			report, err := r.Recover(t.Context())
			expect.NoError(t, err)
			expect.Same(t, "adopted", slices.Sorted(slices.Values(report.Adopted)), []string{"c1", "c2"})
			healthy("adopted")
			expect.NoError(t, r.Check(t.Context(), "c1", rt.NetNS), r.Check(t.Context(), "c2", h.Path("netns", "c2")))
			h.sh(`nft flush ruleset; for f in iptables-legacy ip6tables-legacy; do for t in nat filter; do $f -t $t -F; $f -t $t -X; done; done`)
			for _, id := range []string{"c1", "c2"} {
				mended, err := r.Repair(t.Context(), id, cni.RepairOptions{})
				expect.NoError(t, err)
				expect.NoError(t, mended.Err())
				if len(mended.Repaired) == 0 {
					t.Errorf("%s: nothing was repaired", id)
				}
			}
			healthy("repaired")
			expect.NoError(t, r.Check(t.Context(), "c1", rt.NetNS), r.Check(t.Context(), "c2", h.Path("netns", "c2")))
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			if rules := h.rulesAbout("10.77.0.0/24"); len(rules) != 2 {
				t.Errorf("the rules of the network are %q", rules)
			}
			expect.NoError(t, r.Remove(t.Context(), "c2", ""))
			h.WantClean(before)
		})
	}
}

// TestTheAcceptOfANetworkComesAndGoes with its first and its last container, by two
// Runtimes; the next Setup, and Repair, put back what somebody flushed.
func TestTheAcceptOfANetworkComesAndGoes(t *testing.T) {
	for _, variant := range plugintest.Variants() {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := newRealHost(t)
			conf, rt := h.exchanged("", "")
			one, other := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins()), h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins())
			before := h.Audit()
			setup := func(r *cni.Runtime, id, path string) {
				t.Helper()
				_, err := r.Setup(t.Context(), id, path)
				expect.NoError(t, err)
			}
			rules := func() int { return len(h.rulesAbout("10.77.0.0/24")) }
			paths := map[string]string{"c1": rt.NetNS, "c2": h.Container("c2"), "c3": h.Container("c3")}
			setup(one, "c1", paths["c1"])
			expect.Same(t, "rules of the first", rules(), 2)
			setup(other, "c2", paths["c2"])
			expect.Same(t, "rules of both", rules(), 2)
			h.run("iptables", "-F", "CNI-FORWARD")
			setup(one, "c3", paths["c3"])
			expect.Same(t, "rules after a flush and a Setup", rules(), 2)
			h.run("iptables", "-F", "FORWARD")
			report, err := one.Repair(t.Context(), "c1", cni.RepairOptions{})
			expect.NoError(t, err)
			expect.NoError(t, report.Err())
			health, err := one.Health(t.Context(), cni.HealthOptions{})
			expect.NoError(t, err)
			for _, id := range []string{"c1", "c2", "c3"} {
				if of, _ := health.Of(id); of.State != cni.StateHealthy {
					t.Errorf("%s: %v", id, of)
				}
			}
			expect.NoError(t, other.Remove(t.Context(), "c1", ""), one.Remove(t.Context(), "c3", ""))
			expect.Same(t, "rules of the last", rules(), 2)
			expect.NoError(t, testhost.InParallel(2, func(i int) error { // twice at once
				return []*cni.Runtime{one, other}[i].Remove(t.Context(), "c2", "")
			}))
			h.WantClean(before)
		})
	}
}
