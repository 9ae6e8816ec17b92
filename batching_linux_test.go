package cni_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// events records the plugins' actions in order. Executables write to the
// stage's log, which is read before each new event is added.
type events struct {
	s    *testhost.Stage
	list []string
}

func (e *events) note(what string) { e.list = append(append(e.list, e.s.Took()...), what) }

// take returns the events since the last time.
func (e *events) take() []string {
	e.list = append(e.list, e.s.Took()...)
	taken := e.list
	e.list = nil
	return taken
}

// puttingOff is a built-in plugin that defers its work in ADD and DEL. Work
// deferred under one name runs together.
func (e *events) puttingOff(name string, fail map[string]error) testhost.Acting {
	return testhost.Acting{On: map[string]testhost.Action{}, Every: func(ctx context.Context, verb string, _ *plugin.Request) error {
		e.note(verb + " " + name)
		return thread.Join(ctx, contract.From(ctx).Batch, verb, name, func(_ context.Context, names []string) error {
			for _, n := range names {
				e.note(verb + " of " + n + " done")
			}
			return fail[verb]
		})
	}}
}

func (e *events) builtIn(fail map[string]error, names ...string) cni.Opt {
	plugins := map[string]plugin.Plugin{}
	for _, name := range names {
		plugins[name] = e.puttingOff(name, fail)
	}
	return cni.WithBuiltins(plugins)
}

func TestDeferredWorkIsDoneTogetherAtTheEnd(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	r := s.Runtime(e.builtIn(nil, "a", "b"), testhost.ListOfTypes("net", "a", "b"))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	expect.Same(t, "ADD", e.take(), []string{"ADD a", "ADD b", "ADD of a done", "ADD of b done"})
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.Same(t, "CHECK", e.take(), []string{"CHECK a", "CHECK of a done", "CHECK b", "CHECK of b done"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "DEL", e.take(), []string{"DEL b", "DEL a", "DEL of b done", "DEL of a done"})
}

// TestDeferredWorkIsDoneBeforeOthersRun: executables and the caller's own
// plugins may rely on deferred work being done. Work that a caller's plugin
// delegates runs at once.
func TestDeferredWorkIsDoneBeforeOthersRun(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	s.Network("unused", "1.1.0", "disk")
	own := testhost.Acting{Every: func(ctx context.Context, verb string, r *plugin.Request) error {
		e.note(verb + " own")
		_, err := r.Delegate(ctx, verb, "b", r.Config)
		e.note(verb + " own ends")
		return err
	}}
	main := e.puttingOff("main", nil)
	put := main.Every
	main.Every = func(ctx context.Context, verb string, r *plugin.Request) error {
		err := put(ctx, verb, r)
		_, derr := r.Delegate(ctx, verb, "disk", r.Config)
		return errors.Join(err, derr)
	}
	r := s.Runtime(cni.WithPlugin("own", own),
		cni.WithBuiltins(map[string]plugin.Plugin{"a": e.puttingOff("a", nil), "b": e.puttingOff("b", nil), "main": main}),
		cni.WithConfListBytes(testhost.Conflist("net", "1.1.0", map[string]string{"disk": s.Path("script-disk"), "main": s.Path("script-disk")},
			"a", "disk", "b", "own", "main")))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	expect.Same(t, "ADD", e.take(), []string{"ADD a", "ADD of a done", "ADD disk c1/eth0", "ADD b", "ADD of b done",
		"ADD own", "ADD b", "ADD of b done", "ADD own ends", "ADD main", "ADD of main done", "ADD main c1/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "DEL", e.take(), []string{"DEL main", "DEL of main done", "DEL main c1/eth0",
		"DEL own", "DEL b", "DEL of b done", "DEL own ends", "DEL b", "DEL of b done", "DEL disk c1/eth0", "DEL a", "DEL of a done"})
}

// TestAFailedADDDropsDeferredWork: the DEL that follows would only remove it
// again. That DEL runs all the work it defers.
func TestAFailedADDDropsDeferredWork(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	failing := e.puttingOff("b", nil)
	failing.On["ADD"] = func(ctx context.Context, r *plugin.Request) error {
		e.note("ADD b fails")
		_, err := r.Delegate(ctx, "DEL", "disk", s.ScriptOf("disk")) // undoes its own work
		return errors.Join(err, errors.New("cannot"))
	}
	s.Network("unused", "1.1.0", "disk")
	r := s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"a": e.puttingOff("a", nil), "b": failing}), testhost.ListOfTypes("net", "a", "b"))
	err := testhost.SetUp(t.Context(), r, "c1", s.Container("c1"))()
	expect.Same(t, "error", err.Error(), `add network "net" of container c1, interface eth0: plugin type="b" (built in) failed (add): cannot (code 999)`)
	expect.Same(t, "calls", e.take(), []string{"ADD a", "ADD b fails", "DEL disk c1/eth0", "DEL b", "DEL a", "DEL of b done", "DEL of a done"})
}

func TestAFlushThatFailsFailsTheADD(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	path := s.Container("c1")
	before := s.Audit()
	failure := errors.New("no such table")
	r := s.Runtime(e.builtIn(map[string]error{"ADD": failure}, "a", "b"), testhost.ListOfTypes("net", "a", "b"))
	err := testhost.SetUp(t.Context(), r, "c1", path)()
	expect.Is(t, err, failure)
	const of = `add network "net" of container c1, interface eth0: plugin type=%q (built in) failed (add): apply batched changes: no such table (code 999)`
	expect.Same(t, "error", err.Error(), fmt.Sprintf(of, "a")+"; "+fmt.Sprintf(of, "b"))
	expect.Same(t, "calls", e.take(), []string{"ADD a", "ADD b", "ADD of a done", "ADD of b done",
		"ADD of a done", "ADD of b done", // each by itself, to see whose fails
		"DEL b", "DEL a", "DEL of b done", "DEL of a done"})
	expect.Same(t, "cached", s.Cached(), []string{})
	s.WantClean(before)
}

// TestAFlushThatFailsBeforeAnExecutable: an ADD does not start the executable.
// A DEL still does.
func TestAFlushThatFailsBeforeAnExecutable(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	s.Network("unused", "1.1.0", "disk")
	list := func(types ...string) cni.Opt {
		return cni.WithConfListBytes(testhost.Conflist("net", "1.1.0", map[string]string{"disk": s.Path("script-disk")}, types...))
	}
	add, del := errors.New("cannot add"), errors.New("cannot delete")
	err := testhost.SetUp(t.Context(), s.Runtime(e.builtIn(map[string]error{"ADD": add}, "a"), list("a", "disk")), "c1", s.Container("c1"))()
	expect.Is(t, err, add)
	expect.Same(t, "ADD", e.take(), []string{"ADD a", "ADD of a done", "DEL disk c1/eth0", "DEL a", "DEL of a done"})

	path := s.Container("c2")
	r := s.Runtime(e.builtIn(map[string]error{"DEL": del}, "a"), list("disk", "a"))
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c2", path)())
	s.On("disk", "DEL", testhost.Says(5, "stuck"))
	e.take()
	err = r.Remove(t.Context(), "c2", path)
	expect.Is(t, err, del)
	expect.Same(t, "messages", testhost.Messages(err), []string{
		"a: apply batched changes: cannot delete", "disk: stuck"})
	expect.Same(t, "DEL", e.take(), []string{"DEL a", "DEL of a done", "DEL disk c2/eth0"})
}

// TestAFlushThatFailsIsAFailedDEL: the record and libcni's cache stay, and the
// next Remove tries again.
func TestAFlushThatFailsIsAFailedDEL(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	path := s.Container("c1")
	before := s.Audit()
	failure := errors.New("stuck")
	fail := map[string]error{"DEL": failure}
	r := s.Runtime(e.builtIn(fail, "a"), testhost.ListOfTypes("net", "a"))
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	for range 2 {
		err := r.Remove(t.Context(), "c1", path)
		expect.Is(t, err, failure)
		expect.Same(t, "error", errors.Unwrap(err).Error(), `del network "net" of container c1, interface eth0: `+
			`plugin type="a" (built in) failed (delete): apply batched changes: stuck (code 999)`)
		expect.Same(t, "cached", s.Cached(), []string{"net-c1-eth0"})
		expect.NoError(t, expect.Err(os.Stat(s.RecordFile("c1")+".json")))
	}
	delete(fail, "DEL")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	s.WantClean(before)
}

// TestTheSweepCompletesAFailedFlush only if it knows everything the plugins make.
func TestTheSweepCompletesAFailedFlush(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	failure := errors.New("stuck")
	for id, tt := range map[string]struct {
		types  []string
		opt    cni.Opt
		madeUp bool
	}{
		"known":   {[]string{"portmap", "bandwidth"}, cni.WithMinNetworkCount(1), true},
		"unknown": {[]string{"portmap", "host-device"}, cni.WithMinNetworkCount(1), false},
		"unmade":  {[]string{"portmap", "tuning"}, cni.WithMinNetworkCount(1), false}, // the maker of the interface is unknown
		// The caller's own plugin has not failed.
		"registered": {[]string{"portmap", "bandwidth"}, cni.WithPlugin("bandwidth", testhost.Idle{}), true},
	} {
		r := s.Runtime(e.builtIn(map[string]error{"DEL": failure}, "portmap", "tuning", "bandwidth", "host-device"), testhost.ListOfTypes("net", tt.types...), tt.opt)
		path := s.Container(id)
		expect.NoError(t, testhost.SetUp(t.Context(), r, id, path)())
		expect.Same(t, id+": error", errors.Is(r.Remove(t.Context(), id, path), failure), !tt.madeUp)
		expect.Same(t, id+": cached", slices.Contains(s.Cached(), "net-"+id+"-eth0"), !tt.madeUp)
	}
}

// TestAFlushHasADeadline: deferred work has a deadline.
func TestAFlushHasADeadline(t *testing.T) {
	s := testhost.NewStage(t)
	p := testhost.Acting{On: map[string]testhost.Action{"DEL": func(ctx context.Context, _ *plugin.Request) error {
		return contract.From(ctx).Batch.Later(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	}}}
	r := s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": p}), testhost.ListOfTypes("net", "p"), cni.WithTimeouts(cni.Timeouts{Del: 50 * time.Millisecond}))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	err := expect.Await(t, "Remove", testhost.Begin(func() error { return r.Remove(t.Context(), "c1", path) }))
	expect.Is(t, err, context.DeadlineExceeded)
	expect.Same(t, "error", errors.Unwrap(err).Error(), `del network "net" of container c1, interface eth0: plugin type="p" (built in) failed (delete): `+
		`apply batched changes: stopped: took longer than the 50ms that a plugin has for DEL (see WithTimeouts)`)
}

// TestAFailedFlushIsAnErrorLikeAllOthers: it has the type of its plugin, a code and a
// sentinel, and an event with the error. The plugin's own call has succeeded.
func TestAFailedFlushIsAnErrorLikeAllOthers(t *testing.T) {
	s := testhost.NewStage(t)
	e := &events{s: s}
	taken := fmt.Errorf("nftables: %w: there is another", netfilter.ErrHostPortTaken)
	gone := plugin.Errorf(5, "the socket is gone")
	failing := testhost.Acting{On: map[string]testhost.Action{"ADD": later(taken), "DEL": later(gone)}}
	var o testhost.Observer
	r := s.Runtime(cni.WithObserver(o.Observe), cni.WithBuiltins(map[string]plugin.Plugin{"a": e.puttingOff("a", nil), "b": failing}),
		testhost.ListOfTypes("net", "a", "b"), cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour}))
	path := s.Container("c1")
	err := testhost.SetUp(t.Context(), r, "c1", path)()
	expect.Is(t, err, cni.ErrPortInUse, taken, gone)
	add := testhost.AsError(t, err)
	expect.Same(t, "error of ADD", []any{add.Op, add.Plugin, add.PluginKind, add.Code, add.Msg},
		[]any{"ADD", "b", "built in", uint(999), "apply batched changes: " + taken.Error()})
	var left *cni.LeftoverError
	expect.Must(t, errors.As(err, &left), "%v", err)
	del := testhost.AsError(t, left)
	expect.Same(t, "error of DEL", []any{del.Op, del.Plugin, del.PluginKind, del.Code, del.Msg},
		[]any{"DEL", "b", "built in", uint(5), "apply batched changes: the socket is gone"})
	event := func(op, plugin string, err error) cni.Event {
		return cni.Event{Operation: op, Network: "net", Plugin: plugin, PluginKind: "built in", ContainerID: "c1", IfName: "eth0", Err: err}
	}
	expect.Same(t, "events", o.Events, []cni.Event{
		event("ADD", "a", nil), event("ADD", "b", nil), event("ADD", "b", add),
		event("DEL", "b", nil), event("DEL", "a", nil), event("DEL", "b", del)})
}

// later returns an action that defers work which fails.
func later(failure error) testhost.Action {
	return func(ctx context.Context, _ *plugin.Request) error {
		return contract.From(ctx).Batch.Later(ctx, func(context.Context) error { return failure })
	}
}
