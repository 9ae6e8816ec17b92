package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

func TestObserverIsToldOfEachPluginsCall(t *testing.T) {
	s := newStage(t)
	var o testhost.Observer
	type key struct{}
	observe := func(ctx context.Context, e cni.Event) {
		expect.Same(t, "context of "+e.Plugin, ctx.Value(key{}), any("the caller's"))
		o.Observe(ctx, e)
	}
	r := s.Runtime(cni.WithObserver(observe), cni.WithConfListBytes(s.Network("net", "1.1.0", "p", "q")))
	ctx := context.WithValue(t.Context(), key{}, "the caller's")
	path := s.Container("c1")
	s.On("q", "ADD", testhost.Says(5, "no"))
	s.On("q", "DEL", testhost.Says(3, "unknown"))
	expect.NoError(t, r.StatusOf(ctx))
	_, err := r.Setup(ctx, "c1", path)
	add := testhost.AsError(t, err)
	expect.Same(t, "error", add.Msg, "no")
	expect.Is(t, r.Check(ctx, "c1", path), cni.ErrNotAttached)

	event := func(op, plugin string) cni.Event {
		return cni.Event{Operation: op, Network: "net", Plugin: plugin, PluginKind: "executable", ContainerID: "c1", IfName: "eth0"}
	}
	status := func(plugin string) cni.Event {
		return cni.Event{Operation: "STATUS", Network: "net", Plugin: plugin, PluginKind: "executable"}
	}
	expect.Must(t, len(o.Events) == 6, "events %v", o.Events)
	var del *cni.Error // code 3 is the plugin's answer, not a failed operation
	expect.That(t, errors.As(o.Events[4].Err, &del) && del.Code == 3, "error of the DEL %v, want code 3", o.Events[4].Err)
	want := []cni.Event{status("p"), status("q"), event("ADD", "p"), event("ADD", "q"), event("DEL", "q"), event("DEL", "p")}
	want[3].Err, want[4].Err = add, del
	expect.Same(t, "events", o.Events, want)
}

func TestLogHasALineForEachCall(t *testing.T) {
	s := newStage(t)
	var log testhost.Log
	r := s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.On("p", "DEL", scripted.Action{Stdout: testhost.Says(5, "no").Stdout, Exit: 1, Stderr: "why"})
	fails(t, r.Remove(t.Context(), "c1", path))
	const common = `network=net plugin=p kind=executable container=c1 interface=eth0`
	expect.Same(t, "debug", log.Lines("DEBUG"), []string{`msg="plugin call" operation=ADD ` + common})
	expect.Same(t, "info", log.Lines("INFO"), []string{`msg="plugin call" operation=DEL ` + common +
		` error="del network \"net\" of container c1, interface eth0: plugin type=\"p\" failed (delete): no (code 5); stderr: why" stderr=why`})
	expect.Same(t, "warnings", log.Lines("WARN"), []string{})
	expect.Same(t, "errors", log.Lines("ERROR"), []string{})
}

func TestTimeoutsBoundEachVerbByItself(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.1.0", "p"))
	path, other := s.Container("c1"), s.Container("c2")
	ctx := t.Context()
	testhost.MustSetUp(t, s.Runtime(conf), "c1", path)
	for _, tt := range []struct {
		verb  string
		field func(*cni.Timeouts) *time.Duration
		run   func(*cni.Runtime) error
		calls []string
	}{
		{"STATUS", func(t *cni.Timeouts) *time.Duration { return &t.Status }, (*cni.Runtime).Status, []string{"STATUS p /"}},
		{"CHECK", func(t *cni.Timeouts) *time.Duration { return &t.Check }, func(r *cni.Runtime) error { return r.Check(ctx, "c1", path) }, []string{"CHECK p c1/eth0"}},
		{"ADD", func(t *cni.Timeouts) *time.Duration { return &t.Add }, func(r *cni.Runtime) error { return testhost.SetUp(ctx, r, "c2", other)() }, []string{"ADD p c2/eth0", "DEL p c2/eth0"}},
		{"DEL", func(t *cni.Timeouts) *time.Duration { return &t.Del }, func(r *cni.Runtime) error { return r.Remove(ctx, "c1", path) }, []string{"DEL p c1/eth0"}},
	} {
		s.On("p", tt.verb, scripted.Action{Hang: true})
		var calls []string
		expect.Limited(300*time.Millisecond, func(limit time.Duration) bool {
			s.TakeCalls()
			var timeouts cni.Timeouts
			*tt.field(&timeouts) = limit
			err := expect.Await(t, tt.verb, testhost.Begin(func() error { return tt.run(s.Runtime(conf, cni.WithTimeouts(timeouts))) }))
			expect.Is(t, err, context.DeadlineExceeded)
			calls = s.Took()
			if !slices.Equal(calls, tt.calls) { // the plugin did not get as far as its log
				return true
			}
			fails(t, err, fmt.Sprintf("killed: took longer than the %v that a plugin has for %s (see WithTimeouts)", limit, tt.verb))
			return false
		})
		expect.Same(t, tt.verb+": calls", calls, tt.calls)
		s.On("p", tt.verb, scripted.Action{})
	}
}

// retrying returns a stage with a network of plugins p and q, and a Runtime
// that makes three attempts, with the longest pauses in between.
func retrying(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	r = s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")),
		cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Millisecond}))
	return s, r, s.Container("c1")
}

var oneAttempt = []string{"ADD p c1/eth0", "ADD q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}

func TestDuty_R41_TransientErrorsAreRetriedAfterADEL(t *testing.T) {
	busy := testhost.Says(100, "failed to create bridge: could not add \"br0\": File exists")
	for what, failure := range map[string]scripted.Action{"code 11": testhost.Says(11, "not now"), "the bridge's race": busy} {
		s, r, path := retrying(t)
		gate := s.Gate("q")
		failure.Block = gate
		s.On("q", "ADD", failure)
		done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
		letGo := s.Arrive(gate)
		s.On("q", "ADD", scripted.Action{}) // for the next attempt
		letGo()
		expect.NoError(t, expect.Await(t, "Setup", done))
		expect.Same(t, what, s.Took(), append(slices.Clone(oneAttempt), "ADD p c1/eth0", "ADD q c1/eth0"))
		expect.Same(t, what+": on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	}
}

func TestDuty_R41_AttemptsAreBounded(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	expect.Same(t, "calls", s.Took(), slices.Concat(oneAttempt, oneAttempt, oneAttempt))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	expect.Same(t, "kept", s.Pinned("c1"), false)
}

func TestDuty_R41_PermanentErrorsAreNotRetried(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(5, "no"))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: no"})
	expect.Same(t, "calls", s.Took(), oneAttempt)

	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.NoError(t, r.Load(cni.WithRetry(cni.Retry{}), cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"q: not now"})
	expect.Same(t, "calls without the option", s.Took(), oneAttempt)
}

func TestDuty_R41_NotTriedAgainIfOneOfSeveralDoesNotPass(t *testing.T) {
	s, r, path := retrying(t)
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q"))))
	s.On("p", "ADD", testhost.Says(11, "not now"))
	s.On("q", "ADD", testhost.Says(5, "no"))
	expect.Same(t, "errors", testhost.Messages(testhost.SetUp(t.Context(), r, "c1", path)()), []string{"p: not now", "q: no"})
	expect.Same(t, "DELs", s.Took()[2:], []string{"DEL q c1/eth1", "DEL p c1/eth0"})
}

func TestDuty_R41_NeverAnADDOnTopOfOneThatCouldNotBeUndone(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	s.On("p", "DEL", testhost.Says(11, "stuck"))
	err := testhost.SetUp(t.Context(), r, "c1", path)()
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: not now", "p: stuck"})
	expect.Same(t, "calls", s.Took(), oneAttempt)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})

	// The next Setup begins with the leftovers of this one.
	s.On("p", "DEL", scripted.Action{})
	s.On("q", "ADD", scripted.Action{})
	testhost.MustSetUp(t, r, "c1", path)
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0", "ADD p c1/eth0", "ADD q c1/eth0"})
}

func TestDuty_R41_TheContextBoundsThePauses(t *testing.T) {
	s, r, path := retrying(t)
	s.On("q", "ADD", testhost.Says(11, "not now"))
	expect.NoError(t, r.Load(cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour, MaxDelay: time.Hour}),
		cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q"))))
	ctx, cancel := context.WithCancel(t.Context())
	done := testhost.Begin(testhost.SetUp(ctx, r, "c1", path))
	expect.Same(t, "pauses", s.blocked(".waitFor", 1), 1)
	expect.Same(t, "on record in the pause", testhost.Recorded(t, r), []string{})
	cancel()
	expect.Same(t, "errors", testhost.Messages(expect.Await(t, "Setup", done)), []string{"q: not now"})
	expect.Same(t, "calls", s.Took(), oneAttempt)
}

func TestRetriesThatAreNoneAreRefused(t *testing.T) {
	for _, r := range []cni.Retry{{Attempts: -1}, {Delay: -1}, {MaxDelay: -1}} {
		expect.Is(t, errOf(cni.New(cni.WithRetry(r))), cni.ErrInvalidArgument)
	}
}

func TestDuty_R40_StatusAsksThePluginsOfVersion110(t *testing.T) {
	s := newStage(t)
	conf := []cni.Opt{cni.WithConfListBytes(s.Network("old", "1.0.0", "o")),
		cni.WithConfListBytes(s.Network("net", "1.1.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.1.0", "r"))}
	r := s.Runtime(conf...)
	expect.NoError(t, r.Status())
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS q /", "STATUS r /"})
	s.On("q", "STATUS", testhost.Says(50, "no route"))
	expect.NoError(t, r.Load(conf...)) // forgets the good answer
	got := testhost.AsError(t, r.Status())
	got.Err = nil
	expect.Same(t, "error", *got, cni.Error{Op: "STATUS", Network: "net", Plugin: "q", PluginKind: "executable", Code: 50, Msg: "no route"})
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS q /"})
}

func TestDuty_R40_StatusBelowTheMinimumRunsNoPlugin(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithMinNetworkCount(2), cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	expect.Is(t, r.Status(), cni.ErrCNINotInitialized)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestDuty_R40_AGoodStatusIsKeptForAWhileAnErrorIsNot(t *testing.T) {
	s := newStage(t)
	conf := []cni.Opt{cni.WithConfListBytes(s.Network("net", "1.1.0", "p"))}
	r := s.Runtime(conf...)
	s.On("p", "STATUS", testhost.Says(50, "no route"))
	for range 2 {
		expect.Same(t, "code", testhost.AsError(t, r.Status()).Code, 50)
	}
	s.On("p", "STATUS", scripted.Action{})
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS p /"})
	for range 5 {
		expect.NoError(t, r.Status())
	}
	if n := len(s.Took()); n == 0 || n == 5 { // a stall of the machine may cost one more
		t.Errorf("%d calls", n)
	}
	expect.NoError(t, r.Load(conf...)) // forgets it
	expect.NoError(t, r.Status())
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /"})
}

func TestDuty_R40_StatusOfAnotherNamespaceIsAnotherAnswer(t *testing.T) {
	s := newStage(t)
	r := s.Host.Runtime(cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	expect.NoError(t, r.Status())                                          // on this thread's host
	expect.NoError(t, expect.Await(t, "Status", testhost.Begin(r.Status))) // in the process's namespace
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS p /"})
}

func TestDuty_R40_StatusesAtOnceShareOneRun(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	gate := s.Gate("p")
	s.On("p", "STATUS", scripted.Action{Block: gate, Stdout: testhost.Says(50, "no route").Stdout, Exit: 1})
	first := testhost.Begin(r.Status)
	letGo := s.Arrive(gate)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all []<-chan error
	for range 50 {
		all = append(all, testhost.Begin(r.Status))
	}
	expect.Is(t, r.StatusOf(ctx), context.Canceled) // only this caller gives up
	joined := s.blocked(".AskStatus", 51)
	letGo()
	for _, done := range append(all, first) {
		expect.Same(t, "code", testhost.AsError(t, expect.Await(t, "Status", done)).Code, 50)
	}
	expect.Same(t, "callers of one run", joined, 51)
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /"})
}

func TestDuty_R40_StatusEndsAtItsDeadlineAndKillsThePlugin(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithTimeouts(cni.Timeouts{Status: 100 * time.Millisecond}),
		cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	s.On("p", "STATUS", scripted.Action{Fork: true, Hang: true})
	start := time.Now()
	err := expect.Await(t, "Status", testhost.Begin(r.Status))
	t.Logf("STATUS with a deadline of 100ms took %v", time.Since(start))
	expect.Is(t, err, context.DeadlineExceeded)
	expect.Same(t, "processes", children(t), nil)
}

func TestDuty_R40_StatusEndsWithItsContextAndOthersGetTheAnswer(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	ctx, cancel := context.WithCancelCause(t.Context())
	first, letGo := s.heldUp("p", "STATUS", func() error { return r.StatusOf(ctx) })
	second := testhost.Begin(r.Status)
	why := errors.New("asked for something else")
	cancel(why)
	expect.Is(t, expect.Await(t, "the one that gave up", first), why)
	letGo()
	expect.NoError(t, expect.Await(t, "the other", second))
	expect.NoError(t, r.Status())
	if n := len(s.Took()); n > 2 { // the second call may start after the first has ended
		t.Errorf("%d calls", n)
	}
}
