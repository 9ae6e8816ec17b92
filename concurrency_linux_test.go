package cni_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// warmed is a stage with networks "net" (plugin p) and "two" (plugin q), loaded
// by r, that had their first ADDs.
func warmed(t *testing.T) (s *stage, r *cni.Runtime, conf []cni.Opt) {
	t.Helper()
	s = newStage(t)
	conf = []cni.Opt{cni.WithConfListBytes(s.network("net", "1.1.0", "p")), cni.WithConfListBytes(s.network("two", "1.1.0", "q"))}
	r = s.runtime(conf...)
	path := s.container("warm")
	_, err := r.Setup(t.Context(), "warm", path)
	wantNil(t, err)
	wantNil(t, r.Remove(t.Context(), "warm", path))
	s.takeCalls()
	return s, r, conf
}

func setUp(ctx context.Context, r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) func() error {
	return func() error {
		_, err := r.Setup(ctx, id, path, opts...)
		return err
	}
}

var onNet, onTwo = cni.WithNetwork("net"), cni.WithNetwork("two")

func TestDuty_R24_OperationsOnAContainerNeverOverlap(t *testing.T) {
	s, r, conf := warmed(t)
	other := s.runtime(conf...) // with a lock file of its own, as in another process
	ctx, path := t.Context(), s.container("c1")
	gate := s.gate("p")
	s.logEnds("p", "q")
	s.on("p", "ADD", scripted.Action{Block: gate})
	first := begin(setUp(ctx, r, "c1", path, onNet))
	letGo := s.arrive(gate)
	s.addLink("c1", "eth0")

	var rest []<-chan error
	for _, runtime := range []*cni.Runtime{r, other} {
		for _, f := range []func() error{
			setUp(ctx, runtime, "c1", path, onNet),
			setUp(ctx, runtime, "c1", path, onTwo),
			func() error { return runtime.Check(ctx, "c1", path, onNet) },
		} {
			rest = append(rest, begin(f))
		}
	}
	// Other containers are not held up, by either.
	wantNil(t, setUp(ctx, r, "c2", s.container("c2"), onTwo)())
	wantNil(t, setUp(ctx, other, "c3", s.container("c3"), onTwo)())
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD q c2/eth1", "end of ADD q c2/eth1", "ADD q c3/eth1", "end of ADD q c3/eth1"})
	letGo()
	wantNil(t, await(t, "the first Setup", first))
	for _, done := range rest {
		if err := await(t, "an operation", done); err != nil && !errors.Is(err, cni.ErrAlreadyAttached) {
			t.Error(err)
		}
	}
	wantNoOverlap(t, s.takeCalls())
}

// wantNoOverlap wants each call to end before the next begins.
func wantNoOverlap(t *testing.T, calls []scripted.Call) {
	t.Helper()
	lines := rendered(calls)
	if len(calls) > 0 && calls[0].Ended {
		lines = lines[1:] // the end of what had begun before
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
	conf := s.network("net", "1.0.0", "p")
	r := s.runtime(cni.WithConfListBytes(conf))
	path := s.container("c1")
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	theirs := s.elsewhere(conf, "ADD", "c1", path)
	letGo := s.arrive(gate)
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("impatient"))
	defer cancel()
	if err := r.Check(short, "c1", path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Check beside the Setup of another process: %v, want it to wait until its deadline", err)
	}
	ours := begin(func() error { return r.Remove(t.Context(), "c1", path) })
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0"})
	letGo()
	wantSame(t, "the other process", await(t, "the other process", theirs), "")
	wantNil(t, await(t, "Remove", ours))
	wantSame(t, "calls", s.took(), []string{"DEL p c1/eth0"})
	wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
}

func TestDuty_R24_WhoWaitsForAContainerGivesUpWithItsContext(t *testing.T) {
	s, r, _ := warmed(t)
	path := s.container("c1")
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	first := begin(setUp(t.Context(), r, "c1", path, onNet))
	letGo := s.arrive(gate)
	ctx, cancel := context.WithCancelCause(t.Context())
	second := begin(setUp(ctx, r, "c1", path, onTwo))
	impatient := errors.New("impatient")
	cancel(impatient)
	wantIs(t, await(t, "the second Setup", second), context.Canceled, impatient)
	letGo()
	wantNil(t, await(t, "the first Setup", first))
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0"})
}

// unrelated are calls that no hung plugin of another container may hold up. The
// first group starts no plugin.
func unrelated(s *stage, r *cni.Runtime, conf []cni.Opt) (still, running map[string]func() error) {
	ctx, b, c := s.t.Context(), s.container("b"), s.container("c")
	wantNil(s.t, setUp(ctx, r, "c", c, onTwo)())
	still = map[string]func() error{
		"Status":    r.Status, // of versions without STATUS
		"GetConfig": func() error { r.GetConfig(); return nil },
		"Load":      func() error { return r.Load(conf...) },
	}
	running = map[string]func() error{
		"Setup":  setUp(ctx, r, "b", b, onNet),
		"Remove": func() error { return r.Remove(ctx, "c", c, onTwo) },
		"Check":  func() error { return r.Check(ctx, "b", b, onNet) },
	}
	return still, running
}

func TestFault_F15_AHungPluginHoldsUpNobodyElse(t *testing.T) {
	s := newStage(t)
	conf := []cni.Opt{cni.WithConfListBytes(s.network("net", "1.0.0", "p")), cni.WithConfListBytes(s.network("two", "1.0.0", "q"))}
	r := s.runtime(conf...)
	ctx, a := t.Context(), s.container("a")
	wantNil(t, setUp(ctx, r, "warm", s.container("warm"))())
	still, running := unrelated(s, r, conf)
	gate := s.gate("a")
	s.on("p", "ADD", scripted.Action{Block: strings.Replace(gate, "gate-a", "gate-$CNI_CONTAINERID", 1)})
	s.write("gate-b", "") // b's plugin reads a file that is empty, and goes on
	hung := begin(setUp(ctx, r, "a", a, onNet))
	letGo := s.arrive(gate)

	for what, f := range still {
		best := patience
		for range 5 { // the best of them: the machine may be busy
			start := time.Now()
			wantNil(t, await(t, what, begin(f)))
			best = min(best, time.Since(start))
		}
		t.Logf("M8: %s behind a hung plugin: %v", what, best)
		if best > 5*time.Millisecond {
			t.Errorf("%s took %v behind a hung plugin, want < 5ms", what, best)
		}
	}
	for _, what := range []string{"Setup", "Check", "Remove"} {
		start := time.Now()
		wantNil(t, await(t, what, begin(running[what])))
		t.Logf("M8: %s of another container behind a hung plugin: %v, with its plugins", what, time.Since(start))
	}
	letGo()
	wantNil(t, await(t, "the Setup that hung", hung))
}

func TestFault_F15_AHungSTATUSHoldsUpNoSetup(t *testing.T) {
	s, r, conf := warmed(t)
	gate := s.gate("p")
	s.on("p", "STATUS", scripted.Action{Block: gate})
	status := begin(r.Status)
	letGo := s.arrive(gate)
	path := s.container("c1")
	wantNil(t, await(t, "Setup", begin(setUp(t.Context(), r, "c1", path))))
	wantNil(t, await(t, "Load", begin(func() error { return r.Load(conf...) })))
	wantNil(t, await(t, "Remove", begin(func() error { return r.Remove(t.Context(), "c1", path) })))
	letGo()
	wantNil(t, await(t, "Status", status))
}

func TestLoadDuringASetupLeavesItItsConfiguration(t *testing.T) {
	s, r, _ := warmed(t)
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	path := s.container("c1")
	done := begin(func() error { _, err := r.SetupSerially(t.Context(), "c1", path); return err })
	letGo := s.arrive(gate)
	wantNil(t, r.Load(cni.WithConfListBytes(s.network("new", "1.0.0", "z")), cni.WithPluginDir([]string{s.path("nowhere")})))
	letGo()
	wantNil(t, await(t, "Setup", done))
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD q c1/eth1"})
	var names []string
	for _, n := range r.GetConfig().Networks {
		names = append(names, n.Config.Name+" "+n.IFName)
	}
	wantSame(t, "networks", names, []string{"new eth0"})
}

// chainsOf splits a log by container, and says in which order they came.
func chainsOf(calls []scripted.Call) (order []string, lines map[string][]string) {
	lines = map[string][]string{}
	for i, line := range rendered(calls) {
		id := calls[i].ContainerID
		if !slices.Contains(order, id) {
			order = append(order, id)
		}
		lines[id] = append(lines[id], fmt.Sprint(i, " ", line))
	}
	return order, lines
}
