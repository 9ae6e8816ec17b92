package behaviour_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// abandoning is a network whose containers can be abandoned.
func abandoning() map[string]testhost.Case {
	both := testhost.V4Range + "," + testhost.V6Range
	return map[string]testhost.Case{
		"bridge":     {Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(both))}},
		"ptp":        {Plugins: []string{testhost.PtpConf(testhost.HostLocal(both))}},
		"everything": testhost.Everything(),
	}
}

// wantGone waits until a container has no record.
func (h *realHost) wantGone(r *cni.Runtime, id string) {
	h.T.Helper()
	expect.Eventually(h.T, "the end of "+id, func() bool {
		return !strings.Contains(strings.Join(testhost.Recorded(h.T, r), "\n"), id+"/")
	})
}

// TestFault_F33_AnAbandonedNamespaceGoesByItself, as with faasd, which does not
// remove a container whose task is gone. The next Setup of another container,
// by the same process or a new one, is the only call needed.
func TestFault_F33_AnAbandonedNamespaceGoesByItself(t *testing.T) {
	for name, network := range abandoning() {
		for _, builtIn := range []bool{true, false} {
			for _, restarted := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/built in %v/restarted %v", name, builtIn, restarted), func(t *testing.T) {
					h := newRealHost(t)
					opts := []cni.Opt{cni.WithConfListBytes(network.Conf("podnet", "1.0.0", h.Path("ipam")))}
					if builtIn {
						opts = append(opts, cni.WithBuiltinPlugins())
					}
					r := h.Real(opts...)
					next := h.Container("c2")
					before := h.Audit()
					gone := testhost.NewTask(t)
					_, err := r.Setup(t.Context(), "c1", gone.Path(), onePort)
					expect.NoError(t, err)
					gone.Kill()
					if restarted {
						r = h.Real(opts...)
					}
					_, err = r.Setup(t.Context(), "c2", next)
					expect.NoError(t, err)
					h.wantGone(r, "c1")
					expect.NoError(t, r.Remove(t.Context(), "c2", next))
					h.WantClean(before)
					left, err := os.ReadDir(filepath.Dir(h.Pin("c1")))
					expect.NoError(t, err)
					for _, pin := range left {
						if _, err := netns.Open(filepath.Join(filepath.Dir(h.Pin("c1")), pin.Name())); err == nil {
							t.Errorf("%s keeps a namespace", pin.Name())
						}
					}
				})
			}
		}
	}
}
