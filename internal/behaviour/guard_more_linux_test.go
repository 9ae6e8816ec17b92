package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// guardedStage returns a stage with an attached container, a Runtime, and a host that runs guards.
func guardedStage(t *testing.T) (s *stage, r *cni.Runtime, h *guardedHost) {
	t.Helper()
	s = newStage(t)
	r = s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	return s, r, &guardedHost{t: t, r: r, wake: make(chan struct{}, 1)}
}

// TestGuardRepeatsRemovals: a removal that fails while the guard runs, and one that had
// failed before, are repeated until they succeed. The kernel announces neither.
func TestGuardRepeatsRemovals(t *testing.T) {
	for _, before := range []bool{true, false} {
		s, r, h := guardedStage(t)
		s.On("p", "DEL", testhost.Says(100, "stuck"))
		remove := func() {
			fails(t, r.Remove(t.Context(), "c1", ""))
		}
		if before {
			remove()
		}
		h.guard(s.Runtime(), guard.Options{})
		if !before {
			remove()
		}
		h.wait(guard.Failed, "c1")
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
		s.On("p", "DEL", scripted.Action{})
		h.wait(guard.Removed, "c1")
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	}
}

// TestGuardWithoutRetries leaves removals that failed.
func TestGuardWithoutRetries(t *testing.T) {
	s, r, h := guardedStage(t)
	s.On("p", "DEL", testhost.Says(100, "stuck"))
	fails(t, r.Remove(t.Context(), "c1", ""))
	s.On("p", "DEL", scripted.Action{})
	s.Took()
	collected := make(chan struct{}, 100)
	h.guard(r, guard.Options{WithoutRetries: true, GCInterval: 1500 * time.Millisecond, GC: func(context.Context) (cni.GCOptions, error) {
		collected <- struct{}{}
		return cni.GCOptions{}, errors.New("not now")
	}})
	for range 2 { // in between a removal is due, and would have been repeated
		expect.Await(t, "an interval", collected)
	}
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
}

// event waits for an event of that kind, and returns it.
func (h *guardedHost) event(kind guard.Kind) guard.Event {
	h.t.Helper()
	h.wait(kind, "")
	events := h.taken()
	return events[slices.IndexFunc(events, func(e guard.Event) bool { return e.Kind == kind })]
}

// TestGuardCollects: GC runs at its interval, with the options of the caller. Without
// them it is left out, and runs the next time.
func TestGuardCollects(t *testing.T) {
	_, r, h := guardedStage(t)
	next := make(chan error)
	var empty atomic.Bool // the options keep nothing, and do not say that they mean to
	h.guard(r, guard.Options{GCInterval: time.Millisecond, GC: func(ctx context.Context) (cni.GCOptions, error) {
		select {
		case err := <-next:
			return cni.GCOptions{KeepNone: err == nil && !empty.Load()}, err
		case <-ctx.Done():
			return cni.GCOptions{}, ctx.Err()
		}
	}})
	h.taken()
	unknown := errors.New("the list of containers is not known")
	next <- unknown
	e := h.event(guard.Failed)
	expect.Is(t, e.Err, unknown)
	expect.Same(t, "the report of a GC that is left out", e.Report, nil)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	// A GC that fails as a whole is reported with its error, and the next one runs.
	empty.Store(true)
	next <- nil
	e = h.event(guard.Collected)
	expect.Is(t, e.Err, cni.ErrInvalidArgument)
	expect.Same(t, "the report of a GC that failed", e.Report, nil)
	expect.Contains(t, "a GC that failed", e.String(), fmt.Sprint(e.Err))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	empty.Store(false)
	next <- nil
	e = h.event(guard.Collected)
	expect.NoError(t, e.Err)
	expect.Must(t, e.Report != nil, "a GC without a report")
	expect.Same(t, "report", *e.Report, removed)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
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
	for _, o := range []guard.Options{{Classes: 0x80}, {GCInterval: time.Second}} {
		expect.Is(t, guard.Run(t.Context(), h.Runtime(), o), cni.ErrInvalidArgument)
	}
}
