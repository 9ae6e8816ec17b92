package behaviour_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// warmed returns a stage with networks "net" (plugin p) and "two" (plugin q),
// loaded by r, that have had their first ADDs.
func warmed(t *testing.T) (s *stage, r *cni.Runtime, conf []cni.Opt) {
	t.Helper()
	s = newStage(t)
	conf = []cni.Opt{cni.WithConfListBytes(s.Network("net", "1.1.0", "p")), cni.WithConfListBytes(s.Network("two", "1.1.0", "q"))}
	r = s.Runtime(conf...)
	path := s.Container("warm")
	testhost.MustSetUp(t, r, "warm", path)
	expect.NoError(t, r.Remove(t.Context(), "warm", path))
	s.TakeCalls()
	return s, r, conf
}

func TestDuty_R24_OperationsOnAContainerNeverOverlap(t *testing.T) {
	s, r, conf := warmed(t)
	other := s.Runtime(conf...) // with its own lock file, as in another process
	ctx, path := t.Context(), s.Container("c1")
	gate := s.Gate("p")
	s.LogEnds("p", "q")
	s.On("p", "ADD", scripted.Action{Block: gate})
	first := testhost.Begin(testhost.SetUp(ctx, r, "c1", path, testhost.OnNet))
	letGo := s.Arrive(gate)
	s.AddLink("c1", "eth0")

	var rest []<-chan error
	for _, runtime := range []*cni.Runtime{r, other} {
		for _, f := range []func() error{
			testhost.SetUp(ctx, runtime, "c1", path, testhost.OnNet),
			testhost.SetUp(ctx, runtime, "c1", path, testhost.OnTwo),
			func() error { return runtime.Check(ctx, "c1", path, testhost.OnNet) },
		} {
			rest = append(rest, testhost.Begin(f))
		}
	}
	// Neither blocks other containers.
	testhost.MustSetUp(t, r, "c2", s.Container("c2"), testhost.OnTwo)
	testhost.MustSetUp(t, other, "c3", s.Container("c3"), testhost.OnTwo)
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD q c2/eth1", "end of ADD q c2/eth1", "ADD q c3/eth1", "end of ADD q c3/eth1"})
	letGo()
	expect.NoError(t, expect.Await(t, "the first Setup", first))
	for _, done := range rest {
		if err := expect.Await(t, "an operation", done); err != nil && !errors.Is(err, cni.ErrAlreadyAttached) {
			t.Error(err)
		}
	}
	wantNoOverlap(t, s.TakeCalls())
}

// wantNoOverlap checks that each call ends before the next begins.
func wantNoOverlap(t *testing.T, calls []scripted.Call) {
	t.Helper()
	lines := testhost.Rendered(calls)
	if len(calls) > 0 && calls[0].Ended {
		lines = lines[1:] // the end of an earlier call
	}
	for i := 0; i+1 < len(lines); i += 2 {
		if lines[i+1] != "end of "+lines[i] {
			t.Errorf("calls overlap:\n%s", strings.Join(lines, "\n"))
			return
		}
	}
}

func TestDuty_R24_OperationsOfTwoProcessesNeverOverlap(t *testing.T) {
	s := newStage(t)
	conf := s.Network("net", "1.0.0", "p")
	r := s.Runtime(cni.WithConfListBytes(conf))
	path := s.Container("c1")
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	theirs := s.Elsewhere(conf, "ADD", "c1", path)
	letGo := s.Arrive(gate)
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	if err := r.Check(short, "c1", path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Check beside the Setup of another process: %v, want it to wait until its deadline", err)
	}
	ours := testhost.Begin(func() error { return r.Remove(t.Context(), "c1", path) })
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0"})
	letGo()
	expect.Same(t, "the other process", expect.Await(t, "the other process", theirs), "")
	expect.NoError(t, expect.Await(t, "Remove", ours))
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0"})
	expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
}

func TestDuty_R24_AWaitForAContainerEndsWithItsContext(t *testing.T) {
	s, r, _ := warmed(t)
	path := s.Container("c1")
	first, letGo := s.heldUp("p", "ADD", testhost.SetUp(t.Context(), r, "c1", path, testhost.OnNet))
	ctx, cancel := context.WithCancelCause(t.Context())
	second := testhost.Begin(testhost.SetUp(ctx, r, "c1", path, testhost.OnTwo))
	impatient := errors.New("impatient")
	cancel(impatient)
	expect.Is(t, expect.Await(t, "the second Setup", second), context.Canceled, impatient)
	letGo()
	expect.NoError(t, expect.Await(t, "the first Setup", first))
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0"})
}

// unrelated lists calls that a hung plugin of another container must not block.
// The first group starts no plugin.
func unrelated(s *stage, r *cni.Runtime, conf []cni.Opt) (still, running map[string]func() error) {
	ctx, b, c := s.T.Context(), s.Container("b"), s.Container("c")
	testhost.MustSetUp(s.T, r, "c", c, testhost.OnTwo)
	still = map[string]func() error{
		"Status":    r.Status, // their versions have no STATUS
		"GetConfig": func() error { r.GetConfig(); return nil },
		"Load":      func() error { return r.Load(conf...) },
	}
	running = map[string]func() error{
		"Setup":  testhost.SetUp(ctx, r, "b", b, testhost.OnNet),
		"Remove": func() error { return r.Remove(ctx, "c", c, testhost.OnTwo) },
		"Check":  func() error { return r.Check(ctx, "b", b, testhost.OnNet) },
	}
	return still, running
}

func TestFault_F15_AHungPluginBlocksNoOtherContainer(t *testing.T) {
	s := newStage(t)
	conf := []cni.Opt{cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q"))}
	r := s.Runtime(conf...)
	ctx, a := t.Context(), s.Container("a")
	testhost.MustSetUp(t, r, "warm", s.Container("warm"))
	still, running := unrelated(s, r, conf)
	gate := s.Gate("a")
	s.On("p", "ADD", scripted.Action{Block: strings.Replace(gate, "gate-a", "gate-$CNI_CONTAINERID", 1)})
	s.Write("gate-b", "") // b's plugin reads an empty file and continues
	hung := testhost.Begin(testhost.SetUp(ctx, r, "a", a, testhost.OnNet))
	letGo := s.Arrive(gate)

	for what, f := range still {
		best := expect.Patience
		for range 5 { // none waits for the gate; M8 is measured on a quiet machine
			start := time.Now()
			expect.NoError(t, expect.Await(t, what, testhost.Begin(f)))
			best = min(best, time.Since(start))
		}
		t.Logf("M8: %s behind a hung plugin: %v", what, best)
	}
	for _, what := range []string{"Setup", "Check", "Remove"} {
		start := time.Now()
		expect.NoError(t, expect.Await(t, what, testhost.Begin(running[what])))
		t.Logf("M8: %s of another container behind a hung plugin: %v, with its plugins", what, time.Since(start))
	}
	letGo()
	expect.NoError(t, expect.Await(t, "the Setup that hung", hung))
}

func TestFault_F15_AHungSTATUSHoldsUpNoSetup(t *testing.T) {
	s, r, conf := warmed(t)
	status, letGo := s.heldUp("p", "STATUS", r.Status)
	path := s.Container("c1")
	expect.NoError(t, expect.Await(t, "Setup", testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))))
	expect.NoError(t, expect.Await(t, "Load", testhost.Begin(func() error { return r.Load(conf...) })))
	expect.NoError(t, expect.Await(t, "Remove", testhost.Begin(func() error { return r.Remove(t.Context(), "c1", path) })))
	letGo()
	expect.NoError(t, expect.Await(t, "Status", status))
}

func TestLoadDuringASetupLeavesItItsConfiguration(t *testing.T) {
	s, r, _ := warmed(t)
	path := s.Container("c1")
	done, letGo := s.heldUp("p", "ADD", func() error { _, err := r.SetupSerially(t.Context(), "c1", path); return err })
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("new", "1.0.0", "z")), cni.WithPluginDir([]string{s.Path("nowhere")})))
	letGo()
	expect.NoError(t, expect.Await(t, "Setup", done))
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD q c1/eth1"})
	var names []string
	for _, n := range r.GetConfig().Networks {
		names = append(names, n.Config.Name+" "+n.IFName)
	}
	expect.Same(t, "networks", names, []string{"new eth0"})
}
