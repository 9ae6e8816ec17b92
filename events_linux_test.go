package cni_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

type ctxKey struct{}

// observer keeps events, without what changes from run to run.
type observer struct {
	mu     sync.Mutex
	events []cni.Event
	values []any // of ctxKey in the contexts
}

func (o *observer) observe(ctx context.Context, e cni.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Duration <= 0 {
		e.Plugin += " took no time"
	}
	e.Duration = 0
	o.events = append(o.events, e)
	o.values = append(o.values, ctx.Value(ctxKey{}))
}

func TestObserverIsToldOfEachPluginsCall(t *testing.T) {
	s := newStage(t)
	var o observer
	r := s.runtime(cni.WithObserver(o.observe), cni.WithConfListBytes(s.network("net", "1.1.0", "p", "q")))
	ctx := context.WithValue(t.Context(), ctxKey{}, "the caller's")
	path := s.container("c1")
	s.on("q", "ADD", says(5, "no"))
	s.on("q", "DEL", says(3, "unknown"))
	wantNil(t, r.StatusContext(ctx))
	_, err := r.Setup(ctx, "c1", path)
	add := asError(t, err)
	wantSame(t, "error", add.Msg, "no")
	wantIs(t, r.Check(ctx, "c1", path), cni.ErrNotAttached)

	event := func(op, plugin string) cni.Event {
		return cni.Event{Operation: op, Network: "net", Plugin: plugin, PluginKind: cni.PluginExecutable, ContainerID: "c1", IfName: "eth0"}
	}
	status := func(plugin string) cni.Event {
		return cni.Event{Operation: "STATUS", Network: "net", Plugin: plugin, PluginKind: cni.PluginExecutable}
	}
	if len(o.events) != 6 {
		t.Fatalf("events %v", o.events)
	}
	var del *cni.Error // code 3 is no failure of the operation, but what the plugin said
	if !errors.As(o.events[4].Err, &del) || del.Code != 3 {
		t.Errorf("error of the DEL %v, want code 3", o.events[4].Err)
	}
	want := []cni.Event{status("p"), status("q"), event("ADD", "p"), event("ADD", "q"), event("DEL", "q"), event("DEL", "p")}
	want[3].Err, want[4].Err = add, del
	wantSame(t, "events", o.events, want)
	for i, v := range o.values {
		wantSame(t, fmt.Sprint("context of event ", i), v, any("the caller's"))
	}
}

func TestLogHasALineForEachCall(t *testing.T) {
	s := newStage(t)
	var log logged
	r := s.runtime(log.logger(), cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.on("p", "DEL", scripted.Action{Stdout: says(5, "no").Stdout, Exit: 1, Stderr: "why"})
	if err := r.Remove(t.Context(), "c1", path); err == nil {
		t.Error("no error")
	}
	const common = `network=net plugin=p kind=executable container=c1 interface=eth0`
	wantSame(t, "debug", log.lines("DEBUG"), []string{`msg="plugin call" operation=ADD ` + common})
	wantSame(t, "info", log.lines("INFO"), []string{`msg="plugin call" operation=DEL ` + common +
		` error="del network \"net\" of container c1, interface eth0: plugin type=\"p\" failed (delete): no (code 5); stderr: why" stderr=why`})
	wantSame(t, "warnings", log.lines("WARN"), []string{})
	wantSame(t, "errors", log.lines("ERROR"), []string{})
}

func TestTimeoutsBoundEachVerbByItself(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.1.0", "p"))
	path, other := s.container("c1"), s.container("c2")
	ctx := t.Context()
	wantNil(t, setUp(ctx, s.runtime(conf), "c1", path)())
	const limit = 300 * time.Millisecond // the plugin must get as far as its log
	for _, tt := range []struct {
		verb     string
		timeouts cni.Timeouts
		run      func(*cni.Runtime) error
		calls    []string
	}{
		{"STATUS", cni.Timeouts{Status: limit}, (*cni.Runtime).Status, []string{"STATUS p /"}},
		{"CHECK", cni.Timeouts{Check: limit}, func(r *cni.Runtime) error { return r.Check(ctx, "c1", path) }, []string{"CHECK p c1/eth0"}},
		{"ADD", cni.Timeouts{Add: limit}, func(r *cni.Runtime) error { return setUp(ctx, r, "c2", other)() }, []string{"ADD p c2/eth0", "DEL p c2/eth0"}},
		{"DEL", cni.Timeouts{Del: limit}, func(r *cni.Runtime) error { return r.Remove(ctx, "c1", path) }, []string{"DEL p c1/eth0"}},
	} {
		s.takeCalls()
		s.on("p", tt.verb, scripted.Action{Hang: true})
		err := await(t, tt.verb, begin(func() error { return tt.run(s.runtime(conf, cni.WithTimeouts(tt.timeouts))) }))
		wantIs(t, err, context.DeadlineExceeded)
		want := fmt.Sprintf("killed: took longer than the %v that a plugin has for %s (see WithTimeouts)", limit, tt.verb)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", tt.verb, err, want)
		}
		wantSame(t, tt.verb+": calls", s.took(), tt.calls)
		s.on("p", tt.verb, scripted.Action{})
	}
}
