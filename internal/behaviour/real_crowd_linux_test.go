package behaviour_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestFault_F16_RealCrowdOnAColdHostAndAfterAFlush: all are attached, with an address each. On
// the cold host no rule is there twice. After a flush, as by administrators, firewalld and
// docker, the executables may make copies of the rules that they share, which do no more
// than one of them.
func TestFault_F16_RealCrowdOnAColdHostAndAfterAFlush(t *testing.T) {
	for _, variant := range plugintest.Variants() {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := newRealHost(t)
			c := testhost.Case{Plugins: []string{
				testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range)),
				`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`,
				`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`,
			}}
			r := h.Real(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			for round, flush := range []string{
				":", // a cold host
				"$f -F; $f -t nat -F",
				"$f -F; $f -X; $f -t nat -F; $f -t nat -X",
				"$f -F FORWARD; $f -t nat -F POSTROUTING; $f -t nat -F OUTPUT",
			} {
				h.sh("for f in iptables ip6tables; do " + flush + "; done")
				h.crowd(r, round, 12)
			}
		})
	}
}

// crowd attaches and detaches containers at once.
func (h *realHost) crowd(r *cni.Runtime, round, n int) {
	h.T.Helper()
	paths, addresses := make([]string, n), make([]string, n)
	id := func(i int) string { return fmt.Sprintf("c%d-%d", round, i) }
	for i := range n {
		paths[i] = h.Container(id(i))
	}
	before := h.Audit()
	expect.NoError(h.T, testhost.InParallel(n, func(i int) error {
		result, err := r.Setup(h.T.Context(), id(i), paths[i], testhost.MapPort(int32(10000+i)))
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	}))
	seen := map[string]bool{}
	for _, l := range append(addresses, h.Audit()...) {
		if seen[l] && (round == 0 && strings.HasPrefix(l, "ip") || strings.HasPrefix(l, "10.")) {
			h.T.Errorf("twice: %s", l)
		}
		seen[l] = true
	}
	expect.NoError(h.T, testhost.InParallel(n, func(i int) error { return r.Remove(h.T.Context(), id(i), paths[i]) }))
	if round == 0 {
		h.WantClean(before)
	}
}
