package behaviour_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// longestHoldUp limits a call beside a waiting GC. It waits for the GC's time in line,
// which is two seconds; one that waited for the gate would wait without end.
const longestHoldUp = expect.Patience / 2

// hanging returns a stage and a runtime. Another process attaches c1 with a
// plugin that waits at a gate.
func hanging(t *testing.T) (s *stage, r *cni.Runtime, through func()) {
	t.Helper()
	s = newStage(t)
	conf := s.Network("net", "1.0.0", "p")
	r = s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
	testhost.MustSetUp(t, r, "c2", s.Container("c2")) // the first ADD is alone
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	done := s.Elsewhere(conf, "ADD", "c1", s.Container("c1"))
	letGo := s.Arrive(gate)
	s.On("p", "ADD", scripted.Action{})
	return s, r, func() {
		t.Helper()
		letGo()
		expect.Same(t, "Setup of c1", expect.Await(t, "Setup of c1", done), "")
	}
}

// longest sets a container up and removes it repeatedly, and returns the
// duration of the longest call.
func longest(t *testing.T, r *cni.Runtime, id, path string, during time.Duration) time.Duration {
	t.Helper()
	longest := time.Duration(0)
	for end := time.Now().Add(during); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
		start := time.Now()
		expect.NoError(t, testhost.SetUp(ctx, r, id, path)())
		longest = max(longest, time.Since(start))
		cancel()
		start = time.Now()
		expect.NoError(t, r.Remove(t.Context(), id, ""))
		longest = max(longest, time.Since(start))
	}
	return longest
}

// TestFault_F59_AGCThatWaitsBlocksNobodyForLong: otherwise every container
// would wait while one plugin hangs.
func TestFault_F59_AGCThatWaitsBlocksNobodyForLong(t *testing.T) {
	s, r, through := hanging(t)
	other := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))) // as in another process
	collecting := testhost.Begin(func() error {
		_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
		return err
	})
	t.Run("calls", func(t *testing.T) {
		for id, beside := range map[string]*cni.Runtime{"in-the-process": r, "in-another": other} {
			path := s.Container(id)
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				if took := longest(t, beside, id, path, 5*time.Second); took > longestHoldUp {
					t.Errorf("a call took %v", took)
				}
			})
		}
	})
	select {
	case err := <-collecting:
		t.Fatalf("GC has ended beside an ADD: %v", err)
	default:
	}
	through()
	expect.NoError(t, expect.Await(t, "GC", collecting))
}

// TestFault_F52_RecoverBehindAHungPluginBlocksNobody: removing stray files is
// not urgent.
func TestFault_F52_RecoverBehindAHungPluginBlocksNobody(t *testing.T) {
	s, r, through := hanging(t)
	stray := s.RecordFile("nobody") + ".json.new"
	expect.NoError(t, os.WriteFile(stray, nil, 0o600))
	beside := s.Container("c3")
	testhost.MustSetUp(t, r, "c3", beside)
	expect.NoError(t, r.Remove(t.Context(), "c3", ""))
	start, took := time.Now(), time.Duration(0)
	recovering := testhost.Begin(func() error {
		_, err := r.Recover(t.Context())
		took = time.Since(start)
		return err
	})
	if took := longest(t, r, "c3", beside, 3*time.Second); took > longestHoldUp {
		t.Errorf("a call beside Recover took %v", took)
	}
	expect.NoError(t, expect.Await(t, "Recover", recovering))
	if took > longestHoldUp {
		t.Errorf("Recover took %v", took)
	}
	expect.Same(t, "the stray", exists(t, stray), true)
	through()
	expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "the stray", exists(t, stray), false)
}

// TestFault_F52_APluginThatCallsBackIsRefused if it would wait for itself: for
// its own container, or for a GC that waits for it.
func TestFault_F52_APluginThatCallsBackIsRefused(t *testing.T) {
	s := newStage(t)
	var r *cni.Runtime
	other := s.Runtime(cni.WithStateDir(s.Path("other"))) // with separate locks
	path := s.Container("c2")
	calls := func(ctx context.Context) map[string]error {
		_, recovering := r.Recover(ctx)
		_, collecting := r.GC(ctx, cni.GCOptions{Keep: []string{"c1", "c2"}})
		_, cleaning := r.CleanUp(ctx, cni.CleanUpTarget{ContainerID: "c3", Network: "net", IfName: "eth0"})
		_, repairing := r.Repair(ctx, "c2", cni.RepairOptions{})
		return map[string]error{
			"Repair": repairing,
			"Setup":  testhost.SetUp(ctx, r, "c2", path)(), "Remove": r.Remove(ctx, "c2", path), "Check": r.Check(ctx, "c2", path),
			"CleanUp": cleaning, "Recover": recovering, "GC": collecting,
			"Remove of its own": r.Remove(ctx, "c1", ""),
		}
	}
	var said map[string]error
	act := func(ctx context.Context, _ *plugin.Request) error {
		said = calls(ctx)
		_, err := r.Attachments()
		return errors.Join(err, r.Status(), other.Remove(ctx, "c1", ""))
	}
	r = s.Runtime(cni.WithPlugin("p", testhost.Acting{On: map[string]testhost.Action{"ADD": act, "DEL": act, "CHECK": act, "GC []": act}}), testhost.ListOfTypes("net", "p"))
	for _, step := range []struct {
		verb string
		run  func() error
	}{
		{"ADD", testhost.SetUp(t.Context(), r, "c1", s.Container("c1"))},
		{"CHECK", func() error { return r.Check(t.Context(), "c1", s.Path("netns", "c1")) }},
		{"DEL", func() error { return r.Remove(t.Context(), "c1", "") }},
		{"GC", func() error { _, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true}); return err }},
	} {
		said = nil
		expect.NoError(t, expect.Await(t, step.verb, testhost.Begin(step.run)))
		if len(said) == 0 {
			t.Errorf("%s: the plugin was not called", step.verb)
		}
		for what, err := range said {
			t.Run(step.verb+" calls "+what, func(t *testing.T) { expect.Is(t, err, cni.ErrInsidePlugin) })
		}
	}
	// After the plugin has returned, every call is allowed.
	testhost.MustSetUp(t, r, "c2", path)
	expect.NoError(t, r.Remove(t.Context(), "c2", path))
}
