package behaviour_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// newExecutedHost is newGuardedHost for containers of the reference plugins on a bridge.
// The script runs before the first is attached.
func newExecutedHost(t *testing.T, n int, script string) *guardedHost {
	t.Helper()
	h := newBareHost(t)
	h.sh(script)
	h.attachAll(guardConf(false, ""), n, cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}))
	h.back("at first")
	return h
}

// verdicts returns the verdict on each container as text.
func (h *guardedHost) verdicts() string {
	h.t.Helper()
	report := expect.Value(h.r.Health(h.t.Context(), cni.HealthOptions{Containers: h.ids}))(h.t)
	var lines []string
	for _, one := range report.Containers {
		lines = append(lines, one.String())
	}
	return strings.Join(lines, "\n")
}

// wantHealthy: as Health says, and so says the CHECK of each plugin.
func (h *guardedHost) wantHealthy(what string) {
	h.t.Helper()
	var want []string
	for _, id := range h.ids {
		want = append(want, id+": healthy")
	}
	expect.Same(h.t, what+": verdicts", h.verdicts(), strings.Join(want, "\n"))
	for _, id := range h.ids {
		expect.NoError(h.t, h.r.Check(h.t.Context(), id, h.Path("netns", id)))
	}
}

// repair repairs all containers, and returns an error for each remaining difference.
func (h *guardedHost) repair() error {
	h.t.Helper()
	var errs []error
	for _, id := range h.ids {
		report := expect.Value(h.r.Repair(h.t.Context(), id, cni.RepairOptions{}))(h.t)
		errs = append(errs, report.Err())
	}
	return errors.Join(errs...)
}

// cutOff waits until no container reaches the outside.
func (h *guardedHost) cutOff(what string) {
	h.t.Helper()
	for i := range h.ids {
		expect.Eventually(h.t, what+": no traffic", func() bool { return h.reaches(i) != nil })
	}
}

// bridgeDamages are what can happen to the bridge that the containers share.
var bridgeDamages = []string{
	"ip link del br0",
	"ip link set br0 down",
	"ip addr flush dev br0 scope global",
}

// TestFault_F65_ABridgeThatAnExecutableMadeComesBack: with its address and its hardware
// address, by Repair and by a guard, also for the container that found it there.
func TestFault_F65_ABridgeThatAnExecutableMadeComesBack(t *testing.T) {
	var table []string
	for _, damage := range bridgeDamages {
		t.Run(damage+"/repair", func(t *testing.T) {
			h := newExecutedHost(t, 2, "")
			h.wantHealthy("before")
			before := h.addresses()
			h.sh(damage)
			h.cutOff(damage)
			expect.NoError(t, h.repair())
			took := h.back(damage)
			h.wantHealthy("after")
			expect.Same(t, "addresses", h.addresses(), before)
			table = append(table, fmt.Sprintf("repair %-36s %6d ms", damage, took.Milliseconds()))
		})
		t.Run(damage+"/guard", func(t *testing.T) {
			h := newExecutedHost(t, 2, "")
			before := h.addresses()
			h.guard(h.r, guard.Options{})
			h.sh(damage)
			took := h.back(damage)
			h.quiet()
			h.wantHealthy("after")
			h.wantNoFlapping(damage, h.taken())
			expect.Same(t, "addresses", h.addresses(), before)
			table = append(table, fmt.Sprintf("guard  %-36s %6d ms", damage, took.Milliseconds()))
		})
	}
	t.Logf("traffic is back:\n%s", strings.Join(table, "\n"))
}

// TestFault_F65_ACrowdMakesOneBridge: executables that run at the same time on a host without
// a bridge. Whichever of them makes it, all containers know.
func TestFault_F65_ACrowdMakesOneBridge(t *testing.T) {
	const many = 8
	h := newExecutedHost(t, 0, "")
	errs := make(chan error, many)
	for i := range many {
		id := fmt.Sprintf("c%d", i)
		h.ids = append(h.ids, id)
		path := h.Container(id)
		h.Serve(path, 80)
		go func() {
			_, err := h.r.Setup(t.Context(), id, path, portOf(i))
			errs <- err
		}()
	}
	for range many {
		expect.NoError(t, expect.Await(t, "a Setup", errs))
	}
	h.back("at first")
	for range 2 { // also if the containers of the first round have made it again
		h.sh("ip link del br0")
		expect.NoError(t, h.repair())
		h.back("deleted")
	}
}

// TestFault_F65_ABridgeOfTheHostStaysTheHosts: one that was there before the first ADD,
// one that somebody has made in place of ours, and one of which a record of an earlier
// version says nothing. Repair names the reason, and leaves the bridge alone.
func TestFault_F65_ABridgeOfTheHostStaysTheHosts(t *testing.T) {
	const byHand = "ip link add br0 type bridge; ip link set br0 up; "
	for _, tt := range []struct {
		name, before, damage, why string
		change                    func(*record.Record)
	}{
		{name: "there before", before: byHand, damage: "ip link del br0", why: "there before the ADD"},
		{name: "there before, and down", before: byHand, damage: "ip link set br0 down", why: "there before the ADD"},
		{name: "another program's", before: "ip link add br0 alias other type bridge; ip link set br0 up", damage: "ip link del br0", why: "there before the ADD"},
		{name: "made again by hand", damage: "ip link del br0; " + byHand, why: "somebody else replaced the bridge of the ADD"},
		{name: "an earlier version's record", damage: "ip link del br0", why: "the record does not say whether an ADD made the bridge",
			change: func(rec *record.Record) {
				for i := range rec.Attachments {
					rec.Attachments[i].Facts = nil
				}
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newExecutedHost(t, 1, tt.before)
			if tt.change != nil {
				h.ChangeRecord("c0", tt.change)
			}
			h.sh(tt.damage)
			err := h.repair()
			if err == nil || !errors.Is(err, cni.ErrNotRepairable) || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("Repair: got %v, want an error with %q", err, tt.why)
			}
			if text := h.verdicts(); !strings.Contains(text, tt.why) || !strings.Contains(text, "c0: broken") {
				t.Errorf("Health: got %s, want that it is broken, and %q", text, tt.why)
			}
			br, err := netlink.LinkByName("br0")
			switch {
			case strings.HasPrefix(tt.damage, "ip link del br0; "):
				expect.NoError(t, err)
				expect.Same(t, "alias", br.Attrs().Alias, "")
			case strings.HasPrefix(tt.damage, "ip link del"):
				expect.Same(t, "a bridge", errors.As(err, new(netlink.LinkNotFoundError)), true)
			default:
				expect.NoError(t, err)
				expect.Same(t, "state", br.Attrs().Flags&1 != 0, false)
			}
		})
	}
}
