package behaviour_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/reconcile"
)

// blind are networks of the reference plugins whose CHECK fails for each healthy container.
var blind = []struct {
	name, plugins, says string
}{
	{name: "bridge without an IPAM plugin", plugins: `{"type": "bridge", "bridge": "br0"}`, says: "without an IPAM plugin"},
	{name: "bridge with an interface that is down", plugins: `{"type": "bridge", "bridge": "br0", "disableContainerInterface": true}`, says: "without an IPAM plugin"},
	{name: "a route in another table", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}],
		"routes": [{"dst": "10.8.0.0/16", "table": 300}]}}`, says: "finds nothing wrong"},
	{name: "ptp with a route in another table", plugins: `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}],
		"routes": [{"dst": "10.8.0.0/16", "table": 300}]}}`, says: "finds nothing wrong"},
	{name: "macvlan with a single address", plugins: `{"type": "macvlan", "master": "up0", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/32"}]}}`, says: "finds nothing wrong"},
	{name: "sysctl of several numbers", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "tuning", "dataDir": "TUNING", "sysctl": {"net.ipv4.ip_local_port_range": "2000 3000"}}`, says: "finds nothing wrong"},
	{name: "hardware address in capitals", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "tuning", "dataDir": "TUNING", "mac": "0A:58:0A:4D:00:02"}`, says: "finds nothing wrong"},
	{name: "bandwidth without limits", plugins: `{"type": "macvlan", "master": "up0", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}}`, says: "finds nothing wrong"},
}

// TestFault_F67_ACheckThatFailsForHealthyContainers makes none of them broken: the state is
// unknown, and nobody is repaired, replaced or removed for it, or kept in doubt.
func TestFault_F67_ACheckThatFailsForHealthyContainers(t *testing.T) {
	for _, tt := range blind {
		t.Run(tt.name, func(t *testing.T) {
			h := newRealHost(t)
			h.VethPair("up0", "up1")
			h.LinkUp("up0", "up1")
			conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [%s]}`, strings.ReplaceAll(tt.plugins, "TUNING", h.Path("tuning")))
			r := h.Real(cni.WithConfListBytes([]byte(conf)))
			testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			if err := r.Check(t.Context(), "c1", h.Path("netns", "c1")); err == nil {
				t.Error("CHECK has learnt to succeed")
			}
			one, report := healthOf(t, r, cni.HealthOptions{})
			t.Log(report)
			expect.Same(t, "state", one.State, cni.StateUnknown)
			expect.Same(t, "differences", len(one.Differences), 0)
			expect.Same(t, "failed", report.Checks.Failed, 0)
			if one.Reason == nil || !strings.Contains(one.Reason.Error(), tt.says) || !strings.Contains(one.Reason.Error(), "failed (check)") {
				t.Errorf("reason: got %v, want %q and the error of CHECK", one.Reason, tt.says)
			}
			h.wantLeftAlone(r)
		})
	}
}

// wantLeftAlone: whatever is done about broken containers is not done to c1.
func (h *realHost) wantLeftAlone(r *cni.Runtime) {
	t := h.T
	t.Helper()
	repaired, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, repaired.Err())
	for _, broken := range [][]cni.RecoverOption{nil, {cni.ReportBroken}, {cni.RemoveBroken}} {
		report := expect.Value(r.Recover(t.Context(), broken...))(t)
		expect.Same(t, "recovered", *report, cni.Report{Adopted: []string{"c1"}})
	}
	one := reconciled(h, r, "c1", reconcile.Options{})
	expect.Same(t, "decision", one.Decision, reconcile.Report)
	one = reconciled(h, r, "c1", reconcile.Options{Decide: func(h cni.Health) reconcile.Decision {
		if h.State == cni.StateBroken {
			return reconcile.Replace
		}
		return reconcile.Report
	}})
	expect.Same(t, "replaced", one.Result == nil, true)
	expect.Same(t, "attached", hasLinkAt(h.T, h.Path("netns", "c1"), "eth0"), true)
}

// TestFault_F67_ABrokenContainerIsBroken although its CHECK would fail in any case: the
// comparison finds the damage, and Repair brings the traffic back.
func TestFault_F67_ABrokenContainerIsBroken(t *testing.T) {
	h := newRealHost(t)
	r := h.Real(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`)))
	for i, id := range []string{"c1", "c2"} {
		path := h.Container(id)
		testhost.MustSetUp(t, r, id, path)
		h.Inside(path, func() error { // nobody gives out addresses
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(fmt.Sprintf("10.77.0.%d/24", i+1))
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, addr)
		})
	}
	h.Serve(h.Path("netns", "c1"), 80)
	answer := testhost.Both(h.Path("netns", "c2"), "10.77.0.1:80", "10.77.0.2")
	h.WantAnswers(answer)
	change(t, hostEnd(t, r, "c1"), netlink.LinkSetNoMaster)
	one, _ := healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "state", one.State, cni.StateBroken)
	report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, report.Err())
	h.WantAnswers(answer)
	one, _ = healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "state after the repair", one.State, cni.StateUnknown)
}
