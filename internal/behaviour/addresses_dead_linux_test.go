package behaviour_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

const static = "10.77.0.50"

// wants are the ways to ask for an address.
func wants() map[string][]cni.NamespaceOpts {
	return map[string][]cni.NamespaceOpts{
		"CNI_ARGS":       {cni.WithArgs("IP", static), cni.WithArgs("IgnoreUnknown", "1")},
		"the capability": {cni.WithCapabilityIPs(static + "/24")},
		"args":           {cni.WithConfigArgs("ips", []string{static})},
	}
}

// staticNetwork returns a runtime with a network on which callers may ask for addresses.
func (h *realHost) staticNetwork(executables bool, opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
		"capabilities": {"ips": true}, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/24"}]]}}]}`, h.Path("ipam"))
	opts = append([]cni.Opt{cni.WithConfListBytes(list)}, opts...)
	if executables {
		return h.Real(opts...)
	}
	return h.Runtime(append(opts, cni.WithPluginDir(nil))...)
}

// TestSetupTakesTheAddressOfADeadContainer that it asks for, in each way, whoever made the
// attachment, and removes the dead one. It does so after a restart of the machine too.
func TestSetupTakesTheAddressOfADeadContainer(t *testing.T) {
	for what, want := range wants() {
		for _, executables := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, executables %v", what, executables), func(t *testing.T) {
				h := newRealHost(t)
				r := h.staticNetwork(executables)
				before := h.Audit()
				for _, boot := range []string{"", "another"} {
					// Nobody else removes it meanwhile.
					dies(t, h.staticNetwork(executables, cni.WithoutReaping()), "dead", want...)
					if boot != "" {
						h.ChangeRecord("dead", func(rec *record.Record) { rec.Boot = boot })
					}
					path := h.Container("c1" + boot)
					result := testhost.MustSetUp(t, r, "c1", path, want...)
					expect.Same(t, "address", result.Interfaces["eth0"].IPConfigs[0].IP.String(), static)
					expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
					expect.NoError(t, r.Remove(t.Context(), "c1", path))
				}
				h.WantClean(before)
			})
		}
	}
}

// TestSetupLeavesAHolderOfItsAddress that is not its to remove, and says who it is. The
// holder is unchanged. TestSetupLeavesAHolderThatIsNotItsToRemove has more of them.
func TestSetupLeavesAHolderOfItsAddress(t *testing.T) {
	want := wants()["args"]
	for what, test := range map[string]struct {
		keep func(t *testing.T, h *realHost, r *cni.Runtime)
		says string
		opts []cni.Opt
	}{
		"it lives": {keep: func(t *testing.T, h *realHost, r *cni.Runtime) {
			testhost.MustSetUp(t, r, "c1", h.Container("c1"), want...)
		}},
		"its record cannot be read": {
			keep: func(t *testing.T, h *realHost, _ *cni.Runtime) {
				dies(t, h.staticNetwork(false, cni.WithoutReaping()), "c1", want...)
				h.SpoilBase("c1", "{")
			},
			says: `for container "c1", interface "eth0", which is not on record`,
		},
		"it is another program's": {
			keep: func(t *testing.T, h *realHost, _ *cni.Runtime) {
				h.Write("ipam/net/"+static, "vm7\r\neth0")
			},
			says: `for container "vm7", interface "eth0", which is not on record`,
		},
		"an administrator's": {
			keep: func(t *testing.T, h *realHost, _ *cni.Runtime) { h.Write("ipam/net/"+static, "") },
			says: "for nobody: the file is empty",
		},
		"dead containers are not reaped": {
			keep: func(t *testing.T, h *realHost, _ *cni.Runtime) {
				dies(t, h.staticNetwork(false, cni.WithoutReaping()), "c1", want...)
			},
			opts: []cni.Opt{cni.WithoutReaping()},
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			expect.NoError(t, os.MkdirAll(h.Path("ipam", "net"), 0o755))
			r := h.staticNetwork(false, test.opts...)
			test.keep(t, h, r)
			before := testhost.Recorded(t, r)
			begun := time.Now()
			_, err := r.Setup(t.Context(), "c2", h.Container("c2"), want...)
			if test.says == "" {
				test.says = `for container "c1", interface "eth0"`
			}
			says := fmt.Sprintf("address %s of network \"net\" is reserved in %s %s", static, h.Path("ipam", "net"), test.says)
			if err == nil || !strings.HasSuffix(err.Error(), says) {
				t.Errorf("%v\nwant %q at its end", err, says)
			}
			testhost.AsError(t, err)
			if took := time.Since(begun); took > expect.Patience/2 {
				t.Errorf("Setup waited for %v", took)
			}
			expect.Same(t, "on record", testhost.Recorded(t, r), before)
			if _, err := os.Stat(h.Path("ipam", "net", static)); err != nil {
				t.Error(err)
			}
		})
	}
}
