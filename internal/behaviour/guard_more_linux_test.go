package behaviour_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// TestRetryRemovals: a removal that failed is repeated once it is due, until it succeeds. So are
// those of the same container that did not fail with it.
func TestRetryRemovals(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.On("p", "DEL", testhost.Says(100, "stuck"))
	fails(t, r.Remove(t.Context(), "c1", ""))
	other := s.Runtime() // without the networks
	expect.Same(t, "it is left for now", expect.Value(other.RetryRemovals(t.Context()))(t).Skipped["c1"] != nil, true)
	expect.Eventually(t, "it is repeated", func() bool { return expect.Value(other.RetryRemovals(t.Context()))(t).Failed["c1"] != nil })
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed", "c1/eth1 detaching"})
	s.On("p", "DEL", scripted.Action{})
	expect.Eventually(t, "it succeeds", func() bool { return slices.Contains(expect.Value(other.RetryRemovals(t.Context()))(t).Removed, "c1") })
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// event waits for an event of that kind, and returns it.
func (h *guardedHost) event(kind guard.Kind) guard.Event {
	h.t.Helper()
	h.wait(kind, "")
	events := h.taken()
	return events[slices.IndexFunc(events, func(e guard.Event) bool { return e.Kind == kind })]
}

// legacyHost returns a host with attached containers whose rules are in legacy tables.
func legacyHost(t *testing.T) (h *guardedHost) {
	t.Helper()
	plugintest.UseIPTables(t, "legacy")
	h = newGuardedHost(t, false, "iptables", 2)
	h.back("at first")
	return h
}

// TestGuardReadsLegacyTables: at the interval, and not only what has gone since the
// first time that it has read them.
func TestGuardReadsLegacyTables(t *testing.T) {
	const everything = "iptables -t nat -F"
	for _, damage := range []string{
		everything,
		"iptables -t nat -F CNI-HOSTPORT-DNAT",
		"iptables -t nat -D POSTROUTING 2", // of one container
	} {
		t.Run(damage, func(t *testing.T) {
			h := legacyHost(t)
			h.guard(h.r, guard.Options{LegacyInterval: time.Second})
			h.sh(damage) // perhaps before the first time
			h.wait(guard.Repaired, "")
			h.back(damage)
			h.quiet()
			events := h.taken()
			h.wantNoFlapping(damage, events)
			expect.Same(t, "events that say that legacy tables are unguarded", count(events, guard.Unguarded), 0)
			if damage == everything {
				return // its rules were put back in another table
			}
			h.sh(everything)
			h.wait(guard.Repaired, "")
			h.back("a flush")
			h.quiet()
			h.wantNoFlapping("a flush", h.taken())
		})
	}
}

// TestGuardTellsOfLegacyTables: without an interval, it says that containers have rules
// there.
func TestGuardTellsOfLegacyTables(t *testing.T) {
	h := legacyHost(t)
	h.guard(h.r, guard.Options{})
	expect.Is(t, h.event(guard.Unguarded).Err, guard.ErrUnguarded)
}

// wait waits for an event of that kind about a container, "" for any.
func (h *guardedHost) wait(kind guard.Kind, id string) {
	h.t.Helper()
	for end := time.After(expect.Patience); ; {
		h.mu.Lock()
		there := slices.ContainsFunc(h.events, func(e guard.Event) bool {
			return e.Kind == kind && (id == "" || e.ContainerID == id)
		})
		h.mu.Unlock()
		if there {
			return
		}
		select {
		case <-h.wake:
		case <-end:
			h.t.Fatalf("no event %q about %q:\n%s", kind, id, h.story())
		}
	}
}

// TestHoldStopsTheGuard, of the container or network alone, until it is released, whether or not
// its file can be read.
func TestHoldStopsTheGuard(t *testing.T) {
	for what, tt := range map[string]struct {
		hold   guard.Hold
		damage string
		held   []string
		spoilt bool // its file is damaged, and so is that of a container that is gone
	}{
		"the container":          {guard.Hold{ContainerID: "c0"}, "nft flush ruleset", []string{"c0"}, false},
		"the container, damaged": {guard.Hold{ContainerID: "c0"}, "nft flush ruleset", []string{"c0"}, true},
		"the attachment":         {guard.Hold{ContainerID: "c0", Network: "net"}, "nft flush ruleset", []string{"c0"}, false},
		"the network":            {guard.Hold{Network: "net"}, "ip link set br0 down; nft flush ruleset", []string{"c0", "c1"}, false},
	} {
		t.Run(what, func(t *testing.T) {
			h := newGuardedHost(t, false, "", 2)
			h.guard(h.r, guard.Options{})
			expect.NoError(t, tt.hold.Begin(t.Context(), h.r))
			if tt.spoilt {
				file := expect.Value(filepath.Glob(h.Path("state", "embedcni", "holds", "*")))(t)[0]
				expect.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
				write(h.Host, "state/embedcni/holds/"+strings.Repeat("0", 32)+".json", "{")
				fails(t, errOf(guard.Holds(h.r)))
			}
			h.quiet()
			h.taken()
			h.sh(tt.damage)
			for _, id := range h.ids {
				h.wait(map[bool]guard.Kind{true: guard.Held, false: guard.Repaired}[slices.Contains(tt.held, id)], id)
			}
			h.quiet()
			events := h.taken()
			expect.That(t, !slices.ContainsFunc(events, func(e guard.Event) bool { return e.Kind == guard.Repaired && slices.Contains(tt.held, e.ContainerID) }),
				"repaired although it is held: %q", events)
			expect.NoError(t, tt.hold.End(t.Context(), h.another())) // by another process
			h.back("released")
		})
	}
}

// TestHoldsAreFollowedInAnotherDirectory, if somebody has deleted or moved theirs.
func TestHoldsAreFollowedInAnotherDirectory(t *testing.T) {
	for what, do := range map[string]func(dir string) error{
		"deleted": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".old") },
	} {
		t.Run(what, func(t *testing.T) {
			h := newGuardedHost(t, false, "", 1)
			h.guard(h.r, guard.Options{})
			expect.NoError(t, do(h.Path("state", "embedcni", "holds")))
			hold := guard.Hold{ContainerID: "c0"}
			expect.NoError(t, hold.Begin(t.Context(), h.r))
			h.sh("nft flush ruleset")
			h.wait(guard.Held, "c0")
			h.quiet()
			h.taken()
			expect.NoError(t, hold.End(t.Context(), h.another()))
			h.wait(guard.Repaired, "c0")
		})
	}
}

// TestHoldLasts: another process knows it, Recover honours it, a Repair that is asked for
// does not, and it ends with its container.
func TestHoldLasts(t *testing.T) {
	h := newGuardedHost(t, false, "", 2)
	expect.NoError(t, guard.Hold{ContainerID: "c0", Reason: "maintenance"}.Begin(t.Context(), h.r))
	other := h.another()
	holds := expect.Value(guard.Holds(other))(t)
	expect.That(t, len(holds) == 1 && holds[0].ContainerID == "c0" && holds[0].Reason == "maintenance" && !holds[0].Since.IsZero() && holds[0].Owner != "",
		"holds %+v", holds)
	h.sh("nft flush ruleset")
	report := expect.Value(other.Recover(t.Context()))(t)
	expect.That(t, len(report.Repaired["c0"]) == 0 && len(report.Repaired["c1"]) != 0 && report.Kept["c0"] != nil, "recovered: %v", report)
	repaired := expect.Value(other.Repair(t.Context(), "c0", cni.RepairOptions{}))(t)
	expect.Same(t, "a Repair that was asked for has repaired", len(repaired.Repaired) > 0, true)
	expect.NoError(t, guard.Hold{ContainerID: "c0", Network: "net"}.Begin(t.Context(), other), h.r.Remove(t.Context(), "c0", ""))
	expect.Same(t, "holds of a removed container", len(expect.Value(guard.Holds(other))(t)), 0)
	expect.Same(t, "files", len(expect.Value(filepath.Glob(h.Path("state", "embedcni", "holds", "*")))(t)), 0)
}

// TestHoldRefuses.
func TestHoldRefuses(t *testing.T) {
	h := newGuardedHost(t, false, "", 1)
	for _, c := range map[string]struct {
		hold guard.Hold
		want error
	}{
		"nothing":               {guard.Hold{}, cni.ErrInvalidArgument},
		"an unknown container":  {guard.Hold{ContainerID: "c9"}, cni.ErrNotAttached},
		"an unknown attachment": {guard.Hold{ContainerID: "c0", Network: "other"}, cni.ErrNotAttached},
		"an impossible ID":      {guard.Hold{ContainerID: "../x"}, cni.ErrInvalidArgument},
	} {
		expect.Is(t, c.hold.Begin(t.Context(), h.r), c.want)
	}
	expect.Is(t, (guard.Hold{ContainerID: "c0"}).End(t.Context(), h.r), guard.ErrNotHeld)
}

// TestGuardLeavesWhatIsContested: a guard leaves a part that is deleted after each of its repairs.
func TestGuardLeavesWhatIsContested(t *testing.T) {
	h := newGuardedHost(t, false, "", 2)
	h.guard(h.r, guard.Options{})
	for range 2 {
		h.sh("ip link set br0 down")
		h.back("set down")
		h.quiet()
	}
	h.taken()
	h.sh("ip link set br0 down")
	h.wait(guard.Contested, "")
	h.quiet()
	events := h.taken()
	expect.Same(t, fmt.Sprintf("repairs although they are contested, of %q", events), count(events, guard.Repaired), 0)
	h.sh("ip link set br0 up") // somebody puts it back
	h.back("set up")
	for _, id := range h.ids {
		expect.NoError(t, h.r.Remove(t.Context(), id, ""))
	}
}

// TestGuardOptionsRefused.
func TestGuardOptionsRefused(t *testing.T) {
	h := newRealHost(t)
	expect.Is(t, guard.Run(t.Context(), h.Runtime(), guard.Options{Classes: 0x80}), cni.ErrInvalidArgument)
}
