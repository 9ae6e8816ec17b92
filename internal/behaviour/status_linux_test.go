package behaviour_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

func TestDuty_R40_StatusAsksThePluginsOfVersion110(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithStatusCache(0), cni.WithConfListBytes(s.Network("old", "1.0.0", "o")),
		cni.WithConfListBytes(s.Network("net", "1.1.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.1.0", "r")))
	expect.NoError(t, r.Status())
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS q /", "STATUS r /"})
	s.On("q", "STATUS", testhost.Says(50, "no route"))
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
	conf := []cni.Opt{cni.WithStatusCache(time.Hour), cni.WithConfListBytes(s.Network("net", "1.1.0", "p"))}
	r := s.Runtime(conf...)
	s.On("p", "STATUS", testhost.Says(50, "no route"))
	for range 2 {
		expect.Same(t, "code", testhost.AsError(t, r.Status()).Code, 50)
	}
	s.On("p", "STATUS", scripted.Action{})
	for range 5 {
		expect.NoError(t, r.Status())
	}
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /", "STATUS p /", "STATUS p /"})
	expect.NoError(t, r.Load(conf...)) // forgets it
	expect.NoError(t, r.Status())
	expect.Same(t, "calls", s.Took(), []string{"STATUS p /"})
}

func TestDuty_R40_StatusOfAnotherNamespaceIsAnotherAnswer(t *testing.T) {
	s := newStage(t)
	r := s.Host.Runtime(cni.WithStatusCache(time.Hour), cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
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
	expect.Is(t, r.StatusContext(ctx), context.Canceled) // only this caller gives up
	joined := s.blocked(".(*snapshot).askStatus", 51)
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
	expect.Same(t, "processes", testhost.Children(t), nil)
}

func TestDuty_R40_StatusContextEndsWithItsContextAndOthersGetTheAnswer(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	gate := s.Gate("p")
	s.On("p", "STATUS", scripted.Action{Block: gate})
	ctx, cancel := context.WithCancelCause(t.Context())
	first := testhost.Begin(func() error { return r.StatusContext(ctx) })
	letGo := s.Arrive(gate)
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
