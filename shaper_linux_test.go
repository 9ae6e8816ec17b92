package cni_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/record"
)

// shapers are the host's devices of the plugin bandwidth.
func (h *realHost) shapers() audit.Lines {
	h.t.Helper()
	return h.audit().Without(func(l string) bool { return !strings.HasPrefix(l, "link bwp") })
}

// shaping is a network whose bandwidth is limited by the caller, or not.
func (h *realHost) shaping(network string) cni.Opt {
	h.t.Helper()
	c := realCase{plugins: []string{
		bridgeConf(hostLocal(v4Range)), `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}}
	return cni.WithConfListBytes(c.conf(network, "1.0.0", h.path("ipam")))
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
				path := h.container("c1")
				before := h.audit()
				h.mustSetup(r, "c1", path, shaped("podnet", "eth0", sending))
				first := h.shapers()
				wantSame(t, "devices", len(first), 1)
				_, err := r.Setup(t.Context(), "c1", path, shaped("podnet", "eth1", limits))
				// The reference plugin has but one name.
				if refused := kind == "executables" && name == "egress"; refused != (err != nil) {
					t.Errorf("Setup of eth1: %v", err)
				}
				if err == nil {
					wantNil(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth1", limits)))
					wantNil(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("podnet", cni.WithInterfaceName("eth1"))))
				}
				wantSame(t, "devices without eth1", h.shapers(), first)
				wantNil(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth0", sending)))
				wantNil(t, r.Remove(t.Context(), "c1", path))
				h.wantClean(before)
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
				h.container("net1x")
				h.container("et1x")
				before := h.audit()
				h.mustSetup(r, "net1x", h.path("netns", "net1x"), shaped("pod", "eth0", sending))
				first := h.shapers()
				_, err := r.Setup(t.Context(), "et1x", h.path("netns", "et1x"), shaped("podn", "eth0", limits))
				if refused := kind == "executables" && name == "egress"; refused != (err != nil) {
					t.Errorf("Setup of et1x: %v", err)
				}
				wantNil(t, r.Remove(t.Context(), "et1x", h.path("netns", "et1x")))
				wantSame(t, "devices", h.shapers(), first)
				wantNil(t, r.Remove(t.Context(), "net1x", h.path("netns", "net1x")))
				h.wantClean(before)
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
			path := h.container("c1")
			h.mustSetup(r, "c1", path, shaped("podnet", "eth0", sending))
			h.changeRecord("c1", func(rec *record.Record) {
				rec.Networks[0].State, rec.Networks[0].Result = record.Planned, nil
			})
			wantNil(t, r.Remove(t.Context(), "c1", path))
			wantSame(t, "devices", len(h.shapers()), 0)
		})
	}
}
