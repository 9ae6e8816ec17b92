package behaviour_test

import (
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// kindsOf lists the ways to run the reference types.
func kindsOf() map[string]cni.Opt {
	return map[string]cni.Opt{"built in": cni.WithBuiltinPlugins(), "executables": cni.WithoutBuiltinPlugins()}
}

// mixed returns a Runtime with the reference plugins and scripted ones.
func (h *realHost) mixed(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	return h.Runtime(append([]cni.Opt{cni.WithPluginDir([]string{testhost.ReferencePlugins(h.T), h.Path("bin")})}, opts...)...)
}

// rulesAbout returns the rules that name an address.
func (h *realHost) rulesAbout(addr string) audit.Lines {
	h.T.Helper()
	return h.Audit().Without(func(l string) bool {
		return !strings.HasPrefix(l, "ip") || !strings.Contains(l, " -A ") || !strings.Contains(l, addr)
	})
}

// stuckConf is a network with one address, whose last plugin fails on request,
// so that the DELs of the others must run again.
func (h *realHost) stuckConf(plugins ...string) (conf []byte, stick func(bool)) {
	h.T.Helper()
	const one = `[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.2"}]`
	script := h.Plugin(scripted.Script{}, "stuck")
	c := testhost.Case{Plugins: append([]string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(one))}, plugins...)}
	c.Plugins = append(c.Plugins, `{"type": "stuck", "script": "`+script+`"}`)
	return c.Conf("podnet", "1.0.0", h.Path("ipam")), func(on bool) {
		s := scripted.Script{}
		if on {
			s.Verbs = map[string]scripted.Action{"DEL": testhost.Says(5, "stuck")}
		}
		h.Plugin(s, "stuck")
	}
}

func TestFault_F42_ARetriedDelLeavesTheRulesOfTheAddressesNewOwner(t *testing.T) {
	for kind, opt := range kindsOf() {
		for where, state := range map[string]string{"on record": "state", "of another program": "other"} {
			t.Run(kind+"/"+where, func(t *testing.T) {
				h := newRealHost(t)
				conf, stick := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
				r := h.mixed(opt, cni.WithConfListBytes(conf))
				path := h.Container("c1")
				testhost.MustSetUp(h.T, r, "c1", path)
				stick(true)
				if err := r.Remove(t.Context(), "c1", path); err == nil {
					t.Fatal("Remove succeeded, though a plugin failed")
				}
				if rules := h.rulesAbout("10.77.0.2"); len(rules) > 0 {
					t.Fatalf("left of c1: %q", rules)
				}
				stick(false)
				other := h.mixed(opt, cni.WithConfListBytes(conf), cni.WithStateDir(h.Path(state)), cni.WithOwner("other"))
				testhost.MustSetUp(h.T, other, "c2", h.Container("c2"))
				about := "10.77.0.2" // an executable's rules are the container's
				if kind == "built in" {
					about = "10.77.0.0/24" // a built-in plugin's are the network's
				}
				rules := h.rulesAbout(about)
				if len(rules) < 2 {
					t.Fatalf("c2 has the rules %q", rules)
				}
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "rules of c2", h.rulesAbout(about), rules)
				expect.NoError(t, other.Remove(t.Context(), "c2", h.Path("netns", "c2")))
				expect.Same(t, "rules of nobody", len(h.rulesAbout(about)), 0)
			})
		}
	}
}

// TestFault_F42_TheFirstDelAfterARebootLeavesThemToo: after a reboot other
// containers may have the addresses before any Remove.
func TestFault_F42_TheFirstDelAfterARebootLeavesThemToo(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			conf, _ := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
			r := h.mixed(opt, cni.WithConfListBytes(conf))
			path := h.Mortal("c1")
			testhost.MustSetUp(h.T, r, "c1", path)
			h.reboot(path)
			expect.NoError(t, os.Remove(h.Path("ipam", "podnet", "10.77.0.2"))) // as if /var/lib/cni is in memory
			testhost.MustSetUp(h.T, r, "c2", h.Container("c2"))
			about := "10.77.0.2" // an executable's rules are the container's
			if kind == "built in" {
				about = "10.77.0.0/24" // a built-in plugin's are the network's
			}
			rules := h.rulesAbout(about)
			if len(rules) < 2 {
				t.Fatalf("c2 has the rules %q", rules)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			expect.Same(t, "rules of c2", h.rulesAbout(about), rules)
		})
	}
}
