package behaviour_test

import (
	"fmt"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
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
			testhost.MustSetUp(t, r, "c1", rt.NetNS, testhost.MapPort(8080))
			list := expect.Value(libcni.NetworkConfFromBytes(conf))(t)
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
			list := expect.Value(libcni.NetworkConfFromBytes(conf))(t)
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins(), cni.WithPluginDir([]string{h.Path("none")}))
			before := h.Audit()
			expect.Value(h.libcni().AddNetworkList(t.Context(), list, rt))(t)
			expect.NoError(t, r.Remove(t.Context(), "c1", rt.NetNS))
			h.WantClean(before)
		})
	}
}
