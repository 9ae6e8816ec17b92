package behaviour_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

func change(t *testing.T, name string, to func(netlink.Link) error) {
	t.Helper()
	l := expect.Value(netlink.LinkByName(name))(t)
	expect.NoError(t, to(l))
}

// attachedBridge attaches c1 to a bridge, by the built-in plugins or by executables, and
// returns the host's end of its interface.
func attachedBridge(t *testing.T, executables bool, version string) (h *realHost, r *cni.Runtime, port string) {
	t.Helper()
	h = newRealHost(t)
	dirs := []string(nil)
	if executables {
		dirs = []string{testhost.ReferencePlugins(t)}
	}
	list := fmt.Appendf(nil, `{"cniVersion": %q, "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.77.0.0/24"}}]}`, version, h.Path("ipam"))
	r = h.Runtime(cni.WithPluginDir(dirs), cni.WithConfListBytes(list))
	result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	t.Cleanup(func() { expect.NoError(t, r.Remove(t.Context(), "c1", "")) })
	for name, i := range result.Interfaces {
		if i.Sandbox == "" && name != "cni0" {
			port = name
		}
	}
	return h, r, port
}

// TestRecoverAndBrokenContainers: repaired, reported or removed.
func TestRecoverAndBrokenContainers(t *testing.T) {
	for what, tt := range map[string]struct {
		opts                    []cni.RecoverOption
		kept, repaired, removed bool
		after                   cni.HealthState
	}{
		"by default": {nil, false, true, false, cni.StateHealthy},
		"repaired":   {nil, false, true, false, cni.StateHealthy},
		"reported":   {[]cni.RecoverOption{cni.ReportBroken}, true, false, false, cni.StateBroken},
		"removed":    {[]cni.RecoverOption{cni.RemoveBroken}, false, false, true, cni.StateNotAttached},
	} {
		t.Run(what, func(t *testing.T) {
			_, r, port := attachedBridge(t, false, "1.0.0")
			change(t, port, netlink.LinkSetNoMaster)
			report := expect.Value(r.Recover(t.Context(), tt.opts...))(t)
			t.Log(report)
			expect.Same(t, "adopted", len(report.Adopted) == 1, !tt.removed)
			expect.Same(t, "removed", len(report.Removed) == 1, tt.removed)
			expect.Same(t, "kept", report.Kept["c1"] != nil, tt.kept)
			expect.Same(t, "repaired", len(report.Repaired["c1"]) > 0, tt.repaired)
			h, _ := healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
			expect.Same(t, "afterwards", h.State, tt.after)
		})
	}
}

// TestRecoverRemovesNoContainerForACheck: only a comparison proves that something is
// missing.
func TestRecoverRemovesNoContainerForACheck(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.On("p", "CHECK", testhost.Says(5, "no"))
	report := expect.Value(s.restarted(conf).Recover(t.Context(), cni.RemoveBroken))(t)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Kept: report.Kept})
	expect.Same(t, "kept", report.Kept["c1"] != nil, true)
	s.DelLink("c1", "eth0")
	report = expect.Value(s.restarted(conf).Recover(t.Context(), cni.RemoveBroken))(t)
	expect.Same(t, "report", *report, removed)
}

// TestRecoverRemovesNoContainerForASettingOfTheHost: a host that does not forward cuts
// off all containers, and their removal would not help.
func TestRecoverRemovesNoContainerForASettingOfTheHost(t *testing.T) {
	host, r, port := attachedBridge(t, false, "1.0.0")
	expect.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	h, _ := healthOf(t, r, cni.HealthOptions{})
	expect.Same(t, "state", h.State, cni.StateBroken)
	expect.Same(t, "differences", len(h.Differences), 1)
	expect.Same(t, "kind", h.Differences[0].Kind, "sysctl")
	report := expect.Value(r.Recover(t.Context(), cni.RemoveBroken))(t)
	expect.Same(t, "adopted", len(report.Adopted), 1)
	expect.Same(t, "kept", report.Kept["c1"] != nil, true)
	expect.NoError(t, r.Check(t.Context(), "c1", host.Path("netns", "c1")))
	change(t, port, netlink.LinkSetNoMaster)
	report = expect.Value(r.Recover(t.Context(), cni.RemoveBroken))(t)
	expect.Same(t, "removed", report.Removed, []string{"c1"})
}
