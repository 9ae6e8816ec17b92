package behaviour_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// shapers returns the plugin bandwidth's devices on the host.
func (h *realHost) shapers() audit.Lines {
	h.T.Helper()
	return h.Audit().Without(func(l string) bool { return !strings.HasPrefix(l, "link bwp") })
}

// shaping is a network whose bandwidth the caller may limit.
func (h *realHost) shaping(network string) cni.Opt {
	h.T.Helper()
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}}
	return cni.WithConfListBytes(c.Conf(network, "1.0.0", h.Path("ipam")))
}

func shaped(network, ifName string, limits cni.BandWidth) cni.NamespaceOpts {
	return cni.WithNetwork(network, cni.WithInterfaceName(ifName), cni.WithCapabilityBandWidth(limits))
}

var sending = cni.BandWidth{EgressRate: 8e6, EgressBurst: 8e6}

// TestFault_F48_TheLimitOfASiblingStays: another interface of the container,
// with or without a limit, is removed or fails to set up. The first one's limit
// stays.
func TestFault_F48_TheLimitOfASiblingStays(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, limits := range map[string]cni.BandWidth{
			"no limit": {}, "ingress": {IngressRate: 8e6, IngressBurst: 8e6}, "egress": sending,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				r := h.mixed(opt, h.shaping("podnet"))
				path := h.Container("c1")
				before := h.Audit()
				testhost.MustSetUp(h.T, r, "c1", path, shaped("podnet", "eth0", sending))
				first := h.shapers()
				expect.Same(t, "devices", len(first), 1)
				_, err := r.Setup(t.Context(), "c1", path, shaped("podnet", "eth1", limits))
				// The reference plugin has only one name.
				if refused := kind == "executables" && name == "egress"; refused != (err != nil) {
					t.Errorf("Setup of eth1: %v", err)
				}
				if err == nil {
					expect.NoError(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth1", limits)))
					expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("podnet", cni.WithInterfaceName("eth1"))))
				}
				expect.Same(t, "devices without eth1", h.shapers(), first)
				expect.NoError(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth0", sending)))
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
			})
		}
	}
}

// TestFault_F48_TheDeviceOfAKilledAddGoes: an ADD killed before its answer
// leaves a device that no result names. It is removed, unless it belongs to a
// sibling.
func TestFault_F48_TheDeviceOfAKilledAddGoes(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			r := h.mixed(opt, h.shaping("podnet"))
			path := h.Container("c1")
			testhost.MustSetUp(h.T, r, "c1", path, shaped("podnet", "eth0", sending))
			h.ChangeRecord("c1", func(rec *record.Record) {
				rec.Attachments[0].State, rec.Attachments[0].Result = record.Planned, nil
			})
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			expect.Same(t, "devices", len(h.shapers()), 0)
		})
	}
}
