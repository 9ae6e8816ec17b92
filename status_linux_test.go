package cni_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

func TestDuty_R40_StatusAsksThePluginsOfVersion110(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithStatusCache(0), cni.WithConfListBytes(s.network("old", "1.0.0", "o")),
		cni.WithConfListBytes(s.network("net", "1.1.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.1.0", "r")))
	wantNil(t, r.Status())
	wantSame(t, "calls", s.took(), []string{"STATUS p /", "STATUS q /", "STATUS r /"})
	s.on("q", "STATUS", says(50, "no route"))
	got := asError(t, r.Status())
	got.Err = nil
	wantSame(t, "error", *got, cni.Error{Op: "STATUS", Network: "net", Plugin: "q", PluginKind: cni.PluginExecutable, Code: 50, Msg: "no route"})
	wantSame(t, "calls", s.took(), []string{"STATUS p /", "STATUS q /"})
}

func TestDuty_R40_StatusBelowTheMinimumAsksNobody(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithMinNetworkCount(2), cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	wantIs(t, r.Status(), cni.ErrCNINotInitialized)
	wantSame(t, "calls", s.took(), []string{})
}

func TestDuty_R40_AGoodStatusIsKeptForAWhileAnErrorIsNot(t *testing.T) {
	s := newStage(t)
	conf := []cni.Opt{cni.WithStatusCache(time.Hour), cni.WithConfListBytes(s.network("net", "1.1.0", "p"))}
	r := s.runtime(conf...)
	s.on("p", "STATUS", says(50, "no route"))
	for range 2 {
		wantSame(t, "code", asError(t, r.Status()).Code, 50)
	}
	s.on("p", "STATUS", scripted.Action{})
	for range 5 {
		wantNil(t, r.Status())
	}
	wantSame(t, "calls", s.took(), []string{"STATUS p /", "STATUS p /", "STATUS p /"})
	wantNil(t, r.Load(conf...)) // forgets it
	wantNil(t, r.Status())
	wantSame(t, "calls", s.took(), []string{"STATUS p /"})
}

func TestDuty_R40_StatusOfAnotherNamespaceIsAnotherAnswer(t *testing.T) {
	s := newStage(t)
	r := s.host.runtime(cni.WithStatusCache(time.Hour), cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	wantNil(t, r.Status())                          // on this thread's host
	wantNil(t, await(t, "Status", begin(r.Status))) // in the process's namespace
	wantSame(t, "calls", s.took(), []string{"STATUS p /", "STATUS p /"})
}

func TestDuty_R40_StatusesAtOnceShareOneRun(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	gate := s.gate("p")
	s.on("p", "STATUS", scripted.Action{Block: gate, Stdout: says(50, "no route").Stdout, Exit: 1})
	first := begin(r.Status)
	letGo := s.arrive(gate)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all []<-chan error
	for range 50 {
		all = append(all, begin(r.Status))
	}
	wantIs(t, r.StatusContext(ctx), context.Canceled) // gives up alone
	joined := s.blocked(".(*snapshot).askStatus", 51)
	letGo()
	for _, done := range append(all, first) {
		wantSame(t, "code", asError(t, await(t, "Status", done)).Code, 50)
	}
	wantSame(t, "callers of one run", joined, 51)
	wantSame(t, "calls", s.took(), []string{"STATUS p /"})
}

func TestDuty_R40_StatusEndsAtItsDeadlineAndKillsThePlugin(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithTimeouts(cni.Timeouts{Status: 100 * time.Millisecond}),
		cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	s.on("p", "STATUS", scripted.Action{Fork: true, Hang: true})
	start := time.Now()
	err := await(t, "Status", begin(r.Status))
	t.Logf("STATUS with a deadline of 100ms took %v", time.Since(start))
	wantIs(t, err, context.DeadlineExceeded)
	wantSame(t, "processes", children(t), nil)
}

func TestDuty_R40_StatusContextEndsWithItsContextAndOthersGetTheAnswer(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.1.0", "p")))
	gate := s.gate("p")
	s.on("p", "STATUS", scripted.Action{Block: gate})
	ctx, cancel := context.WithCancelCause(t.Context())
	first := begin(func() error { return r.StatusContext(ctx) })
	letGo := s.arrive(gate)
	second := begin(r.Status)
	why := errors.New("asked for something else")
	cancel(why)
	wantIs(t, await(t, "the one that gave up", first), why)
	letGo()
	wantNil(t, await(t, "the other", second))
	wantNil(t, r.Status())
	if n := len(s.took()); n > 2 { // the second may have come after the first was over
		t.Errorf("%d calls", n)
	}
}
