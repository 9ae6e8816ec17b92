package behaviour_test

import (
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestRepairLeavesALongDetectionToTheKernel: an administrator has it look for duplicates
// for minutes. Repair waits for a moment once, whatever is missing; the addresses are
// there, and the next Repair finds nothing to do.
func TestRepairLeavesALongDetectionToTheKernel(t *testing.T) {
	const most = 20 * time.Second // of which the detection may take 3, on a loaded machine
	damages := map[string]func(eth0 netlink.Link) error{
		"down": netlink.LinkSetDown,
		"without addresses": func(eth0 netlink.Link) error {
			all, err := netlink.AddrList(eth0, netlink.FAMILY_ALL)
			for _, a := range all {
				if err == nil && a.IP.IsGlobalUnicast() {
					err = netlink.AddrDel(eth0, &a)
				}
			}
			return err
		},
	}
	both := testhost.HostLocal(testhost.V4Range + `, [{"subnet": "fd77::/64"}], [{"subnet": "fd78::/64"}]`)
	for kind, conf := range map[string]string{
		"bridge": testhost.BridgeConf(both), "ptp": testhost.PtpConf(both), "macvlan": `{"type": "macvlan", "master": "up0", ` + both + `}`,
	} {
		for what, damage := range damages {
			t.Run(kind+", "+what, func(t *testing.T) {
				h := newRealHost(t)
				testhost.Uplink(h.RealHost)
				c := testhost.Case{Plugins: []string{conf}}
				r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(c.Conf("net", "1.0.0", h.Path("ipam"))))
				testhost.MustSetUp(t, r, "c1", h.Container("c1"))
				h.inside("c1", func(eth0 netlink.Link) error {
					for setting, value := range map[string]string{"dad_transmits": "1000", "accept_dad": "1"} {
						if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/"+setting, []byte(value), 0o644); err != nil {
							return err
						}
					}
					return damage(eth0)
				})
				begun := time.Now()
				report := expect.Value(r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true}))(t)
				t.Logf("%v: %v", time.Since(begun), report)
				if took := time.Since(begun); took > most {
					t.Errorf("it took %v:\n%v", took, report)
				}
				for _, left := range report.Remaining {
					if left.Kind == "address" || left.Kind == "interface" {
						t.Errorf("it remains: %v: %v", left.Difference, left.Reason)
					}
				}
				again := expect.Value(r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true}))(t)
				expect.Same(t, "repaired the second time", len(again.Repaired), 0)
				expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			})
		}
	}
}
