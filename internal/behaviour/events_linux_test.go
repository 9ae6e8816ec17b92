package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	expect.NoError(t, r.StatusContext(ctx))
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
	if len(o.Events) != 6 {
		t.Fatalf("events %v", o.Events)
	}
	var del *cni.Error // code 3 is the plugin's answer, not a failed operation
	if !errors.As(o.Events[4].Err, &del) || del.Code != 3 {
		t.Errorf("error of the DEL %v, want code 3", o.Events[4].Err)
	}
	want := []cni.Event{status("p"), status("q"), event("ADD", "p"), event("ADD", "q"), event("DEL", "q"), event("DEL", "p")}
	want[3].Err, want[4].Err = add, del
	expect.Same(t, "events", o.Events, want)
}

func TestLogHasALineForEachCall(t *testing.T) {
	s := newStage(t)
	var log testhost.Log
	r := s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	s.On("p", "DEL", scripted.Action{Stdout: testhost.Says(5, "no").Stdout, Exit: 1, Stderr: "why"})
	if err := r.Remove(t.Context(), "c1", path); err == nil {
		t.Error("no error")
	}
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
	expect.NoError(t, testhost.SetUp(ctx, s.Runtime(conf), "c1", path)())
	const limit = time.Second // the plugin must get as far as its log
	for _, tt := range []struct {
		verb     string
		timeouts cni.Timeouts
		run      func(*cni.Runtime) error
		calls    []string
	}{
		{"STATUS", cni.Timeouts{Status: limit}, (*cni.Runtime).Status, []string{"STATUS p /"}},
		{"CHECK", cni.Timeouts{Check: limit}, func(r *cni.Runtime) error { return r.Check(ctx, "c1", path) }, []string{"CHECK p c1/eth0"}},
		{"ADD", cni.Timeouts{Add: limit}, func(r *cni.Runtime) error { return testhost.SetUp(ctx, r, "c2", other)() }, []string{"ADD p c2/eth0", "DEL p c2/eth0"}},
		{"DEL", cni.Timeouts{Del: limit}, func(r *cni.Runtime) error { return r.Remove(ctx, "c1", path) }, []string{"DEL p c1/eth0"}},
	} {
		s.TakeCalls()
		s.On("p", tt.verb, scripted.Action{Hang: true})
		err := expect.Await(t, tt.verb, testhost.Begin(func() error { return tt.run(s.Runtime(conf, cni.WithTimeouts(tt.timeouts))) }))
		expect.Is(t, err, context.DeadlineExceeded)
		want := fmt.Sprintf("killed: took longer than the %v that a plugin has for %s (see WithTimeouts)", limit, tt.verb)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", tt.verb, err, want)
		}
		expect.Same(t, tt.verb+": calls", s.Took(), tt.calls)
		s.On("p", tt.verb, scripted.Action{})
	}
}
