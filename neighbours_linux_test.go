package cni_test

import (
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/scripted"
)

// kindsOf are the ways to run the reference types.
func kindsOf() map[string]cni.Opt {
	return map[string]cni.Opt{"built in": cni.WithBuiltinPlugins(), "executables": cni.WithoutBuiltinPlugins()}
}

// mixed is a Runtime with the reference plugins and the scripted ones.
func (h *realHost) mixed(opts ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	return h.runtime(append([]cni.Opt{cni.WithPluginDir([]string{referencePlugins(h.t), h.path("bin")})}, opts...)...)
}

// rulesAbout are the rules that name an address.
func (h *realHost) rulesAbout(addr string) audit.Lines {
	h.t.Helper()
	return h.audit().Without(func(l string) bool {
		return !strings.HasPrefix(l, "ip") || !strings.Contains(l, " -A ") || !strings.Contains(l, addr)
	})
}

// stuckConf is a network of one address, with a last plugin that can be told to
// fail, so that the DELs of the others have to be run again.
func (h *realHost) stuckConf(plugins ...string) (conf []byte, stick func(bool)) {
	h.t.Helper()
	const one = `[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.2"}]`
	script := h.plugin(scripted.Script{}, "stuck")
	c := realCase{plugins: append([]string{bridgeConf(`"ipMasq": true, ` + hostLocal(one))}, plugins...)}
	c.plugins = append(c.plugins, `{"type": "stuck", "script": "`+script+`"}`)
	return c.conf("podnet", "1.0.0", h.path("ipam")), func(on bool) {
		s := scripted.Script{}
		if on {
			s.Verbs = map[string]scripted.Action{"DEL": says(5, "stuck")}
		}
		h.plugin(s, "stuck")
	}
}

func TestFault_F42_ARetriedDelLeavesTheRulesOfWhoHasTheAddressNow(t *testing.T) {
	for kind, opt := range kindsOf() {
		for where, state := range map[string]string{"on record": "state", "of another program": "other"} {
			t.Run(kind+"/"+where, func(t *testing.T) {
				h := newRealHost(t)
				conf, stick := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
				r := h.mixed(opt, cni.WithConfListBytes(conf))
				path := h.container("c1")
				h.mustSetup(r, "c1", path)
				stick(true)
				if err := r.Remove(t.Context(), "c1", path); err == nil {
					t.Fatal("Remove succeeded, though a plugin failed")
				}
				if rules := h.rulesAbout("10.77.0.2"); len(rules) > 0 {
					t.Fatalf("left of c1: %q", rules)
				}
				stick(false)
				other := h.mixed(opt, cni.WithConfListBytes(conf), cni.WithStateDir(h.path(state)), cni.WithOwner("other"))
				h.mustSetup(other, "c2", h.container("c2"))
				rules := h.rulesAbout("10.77.0.2")
				if len(rules) < 2 {
					t.Fatalf("c2 has the rules %q", rules)
				}
				wantNil(t, r.Remove(t.Context(), "c1", path))
				wantSame(t, "rules of c2", h.rulesAbout("10.77.0.2"), rules)
				wantNil(t, other.Remove(t.Context(), "c2", h.path("netns", "c2")))
				wantSame(t, "rules of nobody", len(h.rulesAbout("10.77.0.2")), 0)
			})
		}
	}
}

// After a reboot the addresses may be others' before anything was removed.
func TestFault_F42_TheFirstDelAfterARebootLeavesThemToo(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			conf, _ := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
			r := h.mixed(opt, cni.WithConfListBytes(conf))
			path := h.mortal("c1")
			h.mustSetup(r, "c1", path)
			h.reboot(path)
			wantNil(t, os.Remove(h.path("ipam", "podnet", "10.77.0.2"))) // as where /var/lib/cni is in memory
			h.mustSetup(r, "c2", h.container("c2"))
			rules := h.rulesAbout("10.77.0.2")
			if len(rules) < 2 {
				t.Fatalf("c2 has the rules %q", rules)
			}
			wantNil(t, r.Remove(t.Context(), "c1", ""))
			wantSame(t, "rules of c2", h.rulesAbout("10.77.0.2"), rules)
		})
	}
}
