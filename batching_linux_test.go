package cni_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/plugin"
)

// events notes what plugins do, in order. Executables note it in the log of the
// stage, which is taken over before anything else is noted.
type events struct {
	s    *stage
	list []string
}

func (e *events) note(what string) { e.list = append(append(e.list, e.s.took()...), what) }

// take returns what happened since the last time.
func (e *events) take() []string {
	e.list = append(e.list, e.s.took()...)
	taken := e.list
	e.list = nil
	return taken
}

// puttingOff is a plugin built in that puts off what it does for ADD and DEL.
// What is put off under one name is done together.
func (e *events) puttingOff(name string, fail map[string]error) acting {
	at := func(verb string) action {
		return func(ctx context.Context, _ *plugin.Request) error {
			e.note(verb + " " + name)
			return batch.Join(ctx, verb, name, func(_ context.Context, names []string) error {
				for _, n := range names {
					e.note(verb + " of " + n + " done")
				}
				return fail[verb]
			})
		}
	}
	return acting{on: map[string]action{"ADD": at("ADD"), "DEL": at("DEL"), "CHECK": at("CHECK")}}
}

func (e *events) builtIn(fail map[string]error, names ...string) cni.Opt {
	plugins := map[string]plugin.Plugin{}
	for _, name := range names {
		plugins[name] = e.puttingOff(name, fail)
	}
	return cni.WithBuiltins(plugins)
}

func TestWhatIsPutOffIsDoneTogetherAtTheEnd(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	r := s.runtime(e.builtIn(nil, "a", "b"), listOfTypes("net", "a", "b"))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	wantSame(t, "ADD", e.take(), []string{"ADD a", "ADD b", "ADD of a done", "ADD of b done"})
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantSame(t, "CHECK", e.take(), []string{"CHECK a", "CHECK of a done", "CHECK b", "CHECK of b done"})
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "DEL", e.take(), []string{"DEL b", "DEL a", "DEL of b done", "DEL of a done"})
}

// TestWhatIsPutOffIsDoneBeforeOthersRun: an executable, and a plugin of the
// caller's, may count on it; what the latter delegates is done at once.
func TestWhatIsPutOffIsDoneBeforeOthersRun(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	s.network("unused", "1.1.0", "disk")
	own := acting{on: map[string]action{}}
	for _, verb := range []string{"ADD", "DEL"} {
		own.on[verb] = func(ctx context.Context, r *plugin.Request) error {
			e.note(verb + " own")
			_, err := r.Delegate(ctx, verb, "b", r.Config)
			e.note(verb + " own ends")
			return err
		}
	}
	main := e.puttingOff("main", nil)
	mainAdd, mainDel := main.on["ADD"], main.on["DEL"]
	main.on["ADD"] = func(ctx context.Context, r *plugin.Request) error {
		err := mainAdd(ctx, r)
		if err == nil {
			_, err = r.Delegate(ctx, "ADD", "disk", r.Config)
		}
		return err
	}
	main.on["DEL"] = func(ctx context.Context, r *plugin.Request) error {
		err := mainDel(ctx, r)
		_, derr := r.Delegate(ctx, "DEL", "disk", r.Config)
		return errors.Join(err, derr)
	}
	r := s.runtime(cni.WithPlugin("own", own),
		cni.WithBuiltins(map[string]plugin.Plugin{"a": e.puttingOff("a", nil), "b": e.puttingOff("b", nil), "main": main}),
		cni.WithConfListBytes(conflist("net", "1.1.0", map[string]string{"disk": s.path("script-disk"), "main": s.path("script-disk")},
			"a", "disk", "b", "own", "main")))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	wantSame(t, "ADD", e.take(), []string{"ADD a", "ADD of a done", "ADD disk c1/eth0", "ADD b", "ADD of b done",
		"ADD own", "ADD b", "ADD of b done", "ADD own ends", "ADD main", "ADD of main done", "ADD main c1/eth0"})
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "DEL", e.take(), []string{"DEL main", "DEL of main done", "DEL main c1/eth0",
		"DEL own", "DEL b", "DEL of b done", "DEL own ends", "DEL b", "DEL of b done", "DEL disk c1/eth0", "DEL a", "DEL of a done"})
}

// TestAFailedADDDropsWhatIsPutOff: the DEL that follows would only remove it
// again. The DEL does all that it puts off.
func TestAFailedADDDropsWhatIsPutOff(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	failing := e.puttingOff("b", nil)
	failing.on["ADD"] = func(ctx context.Context, r *plugin.Request) error {
		e.note("ADD b fails")
		_, err := r.Delegate(ctx, "DEL", "disk", s.scriptOf("disk")) // undoes what it did
		return errors.Join(err, errors.New("cannot"))
	}
	s.network("unused", "1.1.0", "disk")
	r := s.runtime(cni.WithBuiltins(map[string]plugin.Plugin{"a": e.puttingOff("a", nil), "b": failing}), listOfTypes("net", "a", "b"))
	err := setUp(t.Context(), r, "c1", s.container("c1"))()
	wantSame(t, "error", err.Error(), `add network "net" of container c1, interface eth0: plugin type="b" (built in) failed (add): cannot (code 999)`)
	wantSame(t, "calls", e.take(), []string{"ADD a", "ADD b fails", "DEL disk c1/eth0", "DEL b", "DEL a", "DEL of b done", "DEL of a done"})
}

func TestAFlushThatFailsFailsTheADD(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	path := s.container("c1")
	before := s.audit()
	failure := errors.New("no such table")
	r := s.runtime(e.builtIn(map[string]error{"ADD": failure}, "a", "b"), listOfTypes("net", "a", "b"))
	err := setUp(t.Context(), r, "c1", path)()
	wantIs(t, err, failure)
	wantSame(t, "error", err.Error(), `add network "net" of container c1, interface eth0: `+
		`changes that the plugins built in make together, at the end: no such table`)
	wantSame(t, "calls", e.take(), []string{"ADD a", "ADD b", "ADD of a done", "ADD of b done", "DEL b", "DEL a", "DEL of b done", "DEL of a done"})
	wantSame(t, "cached", s.cached(), []string{})
	s.wantClean(before)
}

// TestAFlushThatFailsBeforeAnExecutable keeps it from running in an ADD. A DEL
// asks it all the same.
func TestAFlushThatFailsBeforeAnExecutable(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	s.network("unused", "1.1.0", "disk")
	list := func(types ...string) cni.Opt {
		return cni.WithConfListBytes(conflist("net", "1.1.0", map[string]string{"disk": s.path("script-disk")}, types...))
	}
	add, del := errors.New("cannot add"), errors.New("cannot delete")
	err := setUp(t.Context(), s.runtime(e.builtIn(map[string]error{"ADD": add}, "a"), list("a", "disk")), "c1", s.container("c1"))()
	wantIs(t, err, add)
	wantSame(t, "ADD", e.take(), []string{"ADD a", "ADD of a done", "DEL disk c1/eth0", "DEL a", "DEL of a done"})

	path := s.container("c2")
	r := s.runtime(e.builtIn(map[string]error{"DEL": del}, "a"), list("disk", "a"))
	wantNil(t, setUp(t.Context(), r, "c2", path)())
	s.on("disk", "DEL", says(5, "stuck"))
	e.take()
	err = r.Remove(t.Context(), "c2", path)
	wantIs(t, err, del)
	wantSame(t, "messages", messages(err), []string{
		": changes that the plugins built in make together, at the end: cannot delete", "disk: stuck"})
	wantSame(t, "DEL", e.take(), []string{"DEL a", "DEL of a done", "DEL disk c2/eth0"})
}

// TestAFlushThatFailsIsAFailedDEL: the record and libcni's cache stay, and the
// next Remove tries again.
func TestAFlushThatFailsIsAFailedDEL(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	path := s.container("c1")
	before := s.audit()
	failure := errors.New("stuck")
	fail := map[string]error{"DEL": failure}
	r := s.runtime(e.builtIn(fail, "a"), listOfTypes("net", "a"))
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	for range 2 {
		err := r.Remove(t.Context(), "c1", path)
		wantIs(t, err, failure)
		wantSame(t, "error", errors.Unwrap(err).Error(), `del network "net" of container c1, interface eth0: `+
			`changes that the plugins built in make together, at the end: stuck`)
		wantSame(t, "cached", s.cached(), []string{"net-c1-eth0"})
		_, err = os.Stat(s.recordFile("c1") + ".json")
		wantNil(t, err)
	}
	delete(fail, "DEL")
	wantNil(t, r.Remove(t.Context(), "c1", path))
	s.wantClean(before)
}

// TestTheSweepMakesUpForAFlush of plugins that it knows all of, and for no
// other's.
func TestTheSweepMakesUpForAFlush(t *testing.T) {
	s := newStage(t)
	e := &events{s: s}
	failure := errors.New("stuck")
	for id, tt := range map[string]struct {
		types  []string
		opt    cni.Opt
		madeUp bool
	}{
		"known":      {[]string{"portmap", "bandwidth"}, cni.WithStatusCache(0), true},
		"unknown":    {[]string{"portmap", "host-device"}, cni.WithStatusCache(0), false},
		"unmade":     {[]string{"portmap", "tuning"}, cni.WithStatusCache(0), false}, // who made the interface is not known
		"registered": {[]string{"portmap", "bandwidth"}, cni.WithPlugin("bandwidth", idle{}), false},
	} {
		r := s.runtime(e.builtIn(map[string]error{"DEL": failure}, "portmap", "tuning", "bandwidth", "host-device"), listOfTypes("net", tt.types...), tt.opt)
		path := s.container(id)
		wantNil(t, setUp(t.Context(), r, id, path)())
		err := r.Remove(t.Context(), id, path)
		wantSame(t, id+": error", errors.Is(err, failure), !tt.madeUp)
		wantSame(t, id+": cached", slices.Contains(s.cached(), "net-"+id+"-eth0"), !tt.madeUp)
	}
}

// TestAFlushHasATimeToo: what is put off is not waited for without end.
func TestAFlushHasATimeToo(t *testing.T) {
	s := newStage(t)
	p := acting{on: map[string]action{"DEL": func(ctx context.Context, _ *plugin.Request) error {
		return batch.Later(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	}}}
	r := s.runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": p}), listOfTypes("net", "p"), cni.WithTimeouts(cni.Timeouts{Del: 50 * time.Millisecond}))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	err := await(t, "Remove", begin(func() error { return r.Remove(t.Context(), "c1", path) }))
	wantIs(t, err, context.DeadlineExceeded)
	wantSame(t, "error", errors.Unwrap(err).Error(), `del network "net" of container c1, interface eth0: changes that the plugins built in make together, `+
		`at the end: stopped: took longer than the 50ms that a plugin has for DEL (see WithTimeouts)`)
}
