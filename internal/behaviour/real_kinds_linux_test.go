package behaviour_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/testhost"
)

// installPlugins puts the reference plugins into the host's plugin directory,
// or removes them.
func (h *realHost) installPlugins(installed bool) {
	h.T.Helper()
	bin, away := h.Path("bin"), h.Path("bin.away")
	if _, err := os.Stat(bin); (err == nil) == installed {
		return
	}
	if !installed {
		expect.NoError(h.T, os.Rename(bin, away))
		return
	}
	if os.Rename(away, bin) == nil {
		return
	}
	h.linkPlugins()
}

// linkPlugins makes the host's plugin directory of links to the reference plugins, so that they
// can be replaced one by one.
func (h *realHost) linkPlugins() {
	h.T.Helper()
	expect.NoError(h.T, os.MkdirAll(h.Path("bin"), 0o755))
	for _, name := range refplugins.Names() {
		expect.NoError(h.T, os.Symlink(filepath.Join(testhost.ReferencePlugins(h.T), name), h.Path("bin", name)))
	}
}

// unnamedBackends is the most common kind of network. No configuration names
// the form of three plugins' rules.
func (h *realHost) unnamedBackends() cni.Opt {
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
	return cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
}

func portOf(n int) cni.NamespaceOpts {
	return cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: int32(8000 + n), ContainerPort: 80, Protocol: "tcp"}, {HostPort: int32(9000 + n), ContainerPort: 80, Protocol: "udp"}})
}

// TestFault_F57_GoCNIsContainersWithoutTheirExecutables, and ours without a
// recorded kind, after executables were installed.
func TestFault_F57_GoCNIsContainersWithoutTheirExecutables(t *testing.T) {
	for _, tt := range []struct {
		name             string
		installed, later bool
		old              func(h *testhost.Host, id string)
	}{
		{"go-cni's, executables gone", true, false, (*testhost.Host).Unrecord},
		{"go-cni's, executables there", true, true, (*testhost.Host).Unrecord},
		{"an older record, executables gone", true, false, (*testhost.Host).ForgetKinds},
		{"ours in an older record, executables installed", false, true, (*testhost.Host).ForgetKinds},
		{"ours in libcni's cache, executables installed", false, true, (*testhost.Host).Unrecord},
	} {
		for _, opt := range []cni.Opt{nil, cni.WithBuiltinPlugins()} {
			name := tt.name
			if opt != nil {
				name += ", built-in plugins preferred"
			}
			t.Run(name, func(t *testing.T) {
				h := newRealHost(t)
				conf, path := h.unnamedBackends(), h.Container("c1")
				neighbour := h.Container("c2")
				h.installPlugins(tt.installed)
				first := h.Runtime(conf)
				testhost.MustSetUp(t, first, "c2", neighbour, portOf(2))
				before := h.Audit()
				testhost.MustSetUp(t, first, "c1", path, portOf(1))
				tt.old(h.Host, "c1")
				h.installPlugins(tt.later)
				opts := []cni.Opt{conf}
				if opt != nil {
					opts = append(opts, opt)
				}
				r := h.Runtime(opts...)
				expect.NoError(t, r.Check(t.Context(), "c1", path))
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
				expect.NoError(t, r.Check(t.Context(), "c2", neighbour))
				expect.NoError(t, r.Remove(t.Context(), "c2", neighbour))
			})
		}
	}
}

// TestFault_F57_TheVariantOfIptablesIsTheRecorded: while containers are
// attached, update-alternatives may change the variant behind the plain name.
// Executables use the plain name, and the sweep finds the rest.
func TestFault_F57_TheVariantOfIptablesIsTheRecorded(t *testing.T) {
	variants := []string{"legacy", "nft"}
	for i, variant := range variants {
		for _, kind := range []string{"built in", "executable"} {
			t.Run(fmt.Sprint(variant, " ", kind), func(t *testing.T) {
				h := newRealHost(t)
				masq, portmap := "", ""
				if kind == "executable" {
					masq, portmap = `"ipMasqBackend": "iptables", `, `"backend": "iptables", `
				}
				c := testhost.Case{Plugins: []string{
					testhost.BridgeConf(`"ipMasq": true, ` + masq + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
					`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
				h.installPlugins(kind == "executable")
				r := h.Runtime(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path := h.Container("c1")
				plugintest.UseIPTables(t, variant)
				before := h.Audit()
				testhost.MustSetUp(t, r, "c1", path, portOf(1))
				plugintest.UseIPTables(t, variants[1-i])
				if kind == "built in" {
					expect.NoError(t, r.Check(t.Context(), "c1", path))
				}
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
			})
		}
	}
}
