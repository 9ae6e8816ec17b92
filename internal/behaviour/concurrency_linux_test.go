package behaviour_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
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
		err := expect.Await(t, "an operation", done)
		expect.That(t, err == nil || errors.Is(err, cni.ErrAlreadyAttached), "%v", err)
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
	expect.Is(t, r.Check(short, "c1", path), context.DeadlineExceeded)
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
	write(s.Host, "gate-b", "") // b's plugin reads an empty file and continues
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
	done, letGo := s.heldUp("p", "ADD", func() error { return errOf(r.SetupSerially(t.Context(), "c1", path)) })
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

// hangOnly makes the plugins of a type wait at one container's gate. All other
// containers' gates are open.
func (s *stage) hangOnly(typ, id string, others ...string) (letGo func()) {
	s.T.Helper()
	gate := s.Gate(id)
	for _, other := range others {
		expect.NoError(s.T, os.WriteFile(s.Path("gate-"+other), nil, 0o600))
	}
	s.On(typ, "ADD", scripted.Action{Block: s.Path("gate-$CNI_CONTAINERID")})
	return func() { s.Arrive(gate)() }
}

// awaitCall waits until a plugin has begun.
func (s *stage) awaitCall() {
	s.T.Helper()
	expect.Eventually(s.T, "a plugin's call", func() bool { return len(s.Calls()) > 0 })
}

func TestFault_F31_AHangingFirstADDKeepsNoOtherNetworkWaiting(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("three", "1.0.0", "t", "p")))
	letGo := s.hangOnly("p", "c1", "c2", "c3")
	ctx := t.Context()
	first := testhost.Begin(testhost.SetUp(ctx, r, "c1", s.Container("c1"), testhost.OnNet))
	s.awaitCall()
	expect.Soon(t, "another network", testhost.SetUp(ctx, r, "c2", s.Container("c2"), cni.WithNetwork("three")))
	expect.Soon(t, "the same network", testhost.SetUp(ctx, r, "c3", s.Container("c3"), testhost.OnNet))
	letGo()
	expect.NoError(t, expect.Await(t, "the first", first))
}

// TestFault_F31_AnEarlierVersionsFirstADDBlocksNobody: a process of an
// earlier version holds the lock while its plugin hangs.
func TestFault_F31_AnEarlierVersionsFirstADDBlocksNobody(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	held := expect.Value(lock.Open(s.Path("state", "embedcni", "locks")).Lock(t.Context(), "first/p"))(t)
	expect.Soon(t, "a Setup", testhost.SetUp(t.Context(), r, "c1", path, testhost.OnNet))
	expect.NoError(t, held.Release())
}

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
	collecting := testhost.Begin(func() error { return errOf(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})) })
	t.Run("calls", func(t *testing.T) {
		for id, beside := range map[string]*cni.Runtime{"in-the-process": r, "in-another": other} {
			path := s.Container(id)
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				expect.Within(t, "a call", longest(t, beside, id, path, 5*time.Second), longestHoldUp)
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
	expect.Within(t, "a call beside Recover", longest(t, r, "c3", beside, 3*time.Second), longestHoldUp)
	expect.NoError(t, expect.Await(t, "Recover", recovering))
	expect.Within(t, "Recover", took, longestHoldUp)
	expect.Same(t, "the stray", expect.Exists(t, stray), true)
	through()
	expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "the stray", expect.Exists(t, stray), false)
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
		{"GC", func() error { return errOf(r.GC(t.Context(), cni.GCOptions{KeepNone: true})) }},
	} {
		said = nil
		expect.NoError(t, expect.Await(t, step.verb, testhost.Begin(step.run)))
		expect.That(t, len(said) != 0, "%s: the plugin was not called", step.verb)
		for what, err := range said {
			t.Run(step.verb+" calls "+what, func(t *testing.T) { expect.Is(t, err, cni.ErrInsidePlugin) })
		}
	}
	// After the plugin has returned, every call is allowed.
	testhost.MustSetUp(t, r, "c2", path)
	expect.NoError(t, r.Remove(t.Context(), "c2", path))
}
