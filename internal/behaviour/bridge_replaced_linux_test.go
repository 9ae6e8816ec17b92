package behaviour_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
)

// byHand makes the bridge of guardConf as an administrator does.
const byHand = "ip link add br0 address 02:00:00:00:00:66 type bridge; ip addr add 10.77.0.1/16 dev br0; ip link set br0 up; "

// TestFault_F66_AGuardPutsPortsOnABridgeThatIsMadeAgain: by whoever it was made first, and
// whatever the guard saw meanwhile.
func TestFault_F66_AGuardPutsPortsOnABridgeThatIsMadeAgain(t *testing.T) {
	for _, tt := range []struct{ name, before string }{
		{"the administrator's", byHand},
		{"an executable's", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newExecutedHost(t, 2, tt.before)
			h.guard(h.r, guard.Options{})
			h.taken()
			h.sh("ip link del br0")
			if tt.before != "" { // nobody but the administrator can help
				expect.Eventually(t, "the guard leaves the bridge", func() bool { return strings.Contains(h.story(), "left") })
				h.quiet()
			}
			// A guard may be faster with one that an ADD has made.
			h.sh("ip link add br0 type bridge || true; ip addr add 10.77.0.1/16 dev br0 || true; ip link set br0 up")
			t.Logf("traffic is back after %v", h.back("made again"))
			h.quiet()
			if text := h.verdicts(); strings.Contains(text, "broken") {
				t.Errorf("Health: %s", text)
			}
		})
	}
}

// TestFault_F66_HealthAndRepairAgree about a bridge that was made again by hand: its
// hardware address is another one, which does not matter, and which nobody restores.
func TestFault_F66_HealthAndRepairAgree(t *testing.T) {
	for _, before := range []string{byHand, ""} {
		t.Run(fmt.Sprintf("by hand before too %v", before != ""), func(t *testing.T) {
			h := newExecutedHost(t, 2, before)
			if text := h.verdicts(); strings.Count(text, ": healthy") != 2 {
				t.Errorf("before: %s", text)
			}
			h.sh("ip link del br0; " + strings.Replace(byHand, ":66", ":67", 1))
			h.cutOff("made again")
			expect.NoError(t, h.repair())
			h.back("repaired")
			report := expect.Value(h.r.Health(t.Context(), cni.HealthOptions{}))(t)
			t.Log(report)
			expect.Same(t, "healthy", report.Count(cni.StateHealthy), 2)
			for _, one := range report.Containers {
				expect.NoError(t, one.Err())
				if one.Reason == nil || !strings.Contains(one.Reason.Error(), "hardware address") {
					t.Errorf("%s: the note is %v", one.ContainerID, one.Reason)
				}
			}
			recovered := expect.Value(h.r.Recover(t.Context()))(t)
			expect.Same(t, "kept", len(recovered.Kept), 0)
			expect.Same(t, "adopted", recovered.Adopted, []string{"c0", "c1"})
		})
	}
}
