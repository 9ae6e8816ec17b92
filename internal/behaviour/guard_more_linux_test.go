package behaviour_test

import (
	"context"
	"errors"
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
			if err := r.Remove(t.Context(), "c1", ""); err == nil {
				t.Error("the removal has not failed")
			}
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
	if err := r.Remove(t.Context(), "c1", ""); err == nil {
		t.Error("the removal has not failed")
	}
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
	if e.Report != nil {
		t.Errorf("a GC that is left out has the report %v", e.Report)
	}
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	// A GC that fails as a whole is reported with its error, and the next one runs.
	empty.Store(true)
	next <- nil
	e = h.event(guard.Collected)
	expect.Is(t, e.Err, cni.ErrInvalidArgument)
	if e.Report != nil || !strings.Contains(e.String(), e.Err.Error()) {
		t.Errorf("a GC that failed: %v, with the report %v", e, e.Report)
	}
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	empty.Store(false)
	next <- nil
	e = h.event(guard.Collected)
	expect.NoError(t, e.Err)
	if e.Report == nil {
		t.Fatal("a GC without a report")
	}
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
			if n := count(events, guard.Unguarded); n > 0 {
				t.Errorf("%d events say that legacy tables are unguarded", n)
			}
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
