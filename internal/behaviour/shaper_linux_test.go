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

// shapers are the host's devices of the plugin bandwidth.
func (h *realHost) shapers() audit.Lines {
	h.T.Helper()
	return h.Audit().Without(func(l string) bool { return !strings.HasPrefix(l, "link bwp") })
}

// shaping is a network whose bandwidth is limited by the caller, or not.
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

// Another interface of the container, without a limit or with one of its own, is
// removed, or cannot be set up: the first one's limit stays.
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
				h.mustSetup(r, "c1", path, shaped("podnet", "eth0", sending))
				first := h.shapers()
				expect.Same(t, "devices", len(first), 1)
				_, err := r.Setup(t.Context(), "c1", path, shaped("podnet", "eth1", limits))
				// The reference plugin has but one name.
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

// Network "pod" and container "net1x" have the device's name from the same text
// as "podn" and "et1x".
func TestFault_F48_TheLimitOfACollidingNameStays(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, limits := range map[string]cni.BandWidth{"no limit": {}, "egress": sending} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				r := h.mixed(opt, h.shaping("pod"), h.shaping("podn"))
				h.Container("net1x")
				h.Container("et1x")
				before := h.Audit()
				h.mustSetup(r, "net1x", h.Path("netns", "net1x"), shaped("pod", "eth0", sending))
				first := h.shapers()
				_, err := r.Setup(t.Context(), "et1x", h.Path("netns", "et1x"), shaped("podn", "eth0", limits))
				if refused := kind == "executables" && name == "egress"; refused != (err != nil) {
					t.Errorf("Setup of et1x: %v", err)
				}
				expect.NoError(t, r.Remove(t.Context(), "et1x", h.Path("netns", "et1x")))
				expect.Same(t, "devices", h.shapers(), first)
				expect.NoError(t, r.Remove(t.Context(), "net1x", h.Path("netns", "net1x")))
				h.WantClean(before)
			})
		}
	}
}

// An ADD that was killed before it had answered leaves a device of which no
// result says anything: it goes, unless a sibling has made it.
func TestFault_F48_TheDeviceOfAKilledAddGoes(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			r := h.mixed(opt, h.shaping("podnet"))
			path := h.Container("c1")
			h.mustSetup(r, "c1", path, shaped("podnet", "eth0", sending))
			h.ChangeRecord("c1", func(rec *record.Record) {
				rec.Networks[0].State, rec.Networks[0].Result = record.Planned, nil
			})
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			expect.Same(t, "devices", len(h.shapers()), 0)
		})
	}
}
