package oracle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocni "github.com/containerd/go-cni"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// traced is a host with networks of scripted plugins, on which either library
// can produce a trace.
type traced struct {
	t     *testing.T
	dir   string
	path  string // of the container's namespace
	confs [][]byte
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	h := &traced{t: t, dir: t.TempDir()}
	h.path = filepath.Join(h.dir, "netns")
	ns, err := netns.Create(h.path)
	h.must(err)
	t.Cleanup(func() { h.must(errors.Join(netns.Remove(h.path), ns.Close())) })
	for _, network := range []string{"one", "two"} {
		var plugins []string
		for _, typ := range []string{network + "-a", network + "-b"} {
			h.must(os.Symlink(refplugins.Scripted(), filepath.Join(h.dir, typ)))
			h.on(typ, nil)
			plugins = append(plugins, fmt.Sprintf(`{"type": %q, "script": %q}`, typ, h.script(typ)))
		}
		h.confs = append(h.confs, fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, network, strings.Join(plugins, ",")))
	}
	return h
}

func (h *traced) must(err error) {
	h.t.Helper()
	expect.NoError(h.t, err)
}

func (h *traced) script(typ string) string { return filepath.Join(h.dir, typ+".json") }

// on sets a plugin's action for each verb.
func (h *traced) on(typ string, verbs map[string]scripted.Action) {
	h.t.Helper()
	h.must(scripted.Script{Log: filepath.Join(h.dir, "calls"), Verbs: verbs}.Save(h.script(typ)))
}

// ours and theirs return the libraries with the networks loaded.
func (h *traced) ours() cni.CNI {
	h.t.Helper()
	r, err := cni.New(cni.WithStateDir(filepath.Join(h.dir, "state")), cni.WithPluginDir([]string{h.dir}),
		cni.WithConfListBytes(h.confs[0]), cni.WithConfListBytes(h.confs[1]))
	h.must(err)
	h.t.Cleanup(func() {
		for _, typ := range []string{"one-a", "one-b", "two-a", "two-b"} {
			h.on(typ, nil)
		}
		h.must(r.Remove(context.Background(), "c1", ""))
	})
	return r
}

func (h *traced) theirs() gocni.CNI {
	h.t.Helper()
	c, err := gocni.New(gocni.WithPluginDir([]string{h.dir}), gocni.WithConfListBytes(h.confs[0]), gocni.WithConfListBytes(h.confs[1]))
	h.must(err)
	return c
}

// verbs are the methods of either library that make spans.
type verbs struct {
	setup, setupSerially, remove, check func(ctx context.Context, id, path string) error
}

func (h *traced) verbsOf(ours bool) verbs {
	h.t.Helper()
	if ours {
		c := h.ours()
		return verbs{
			func(ctx context.Context, id, path string) error { _, err := c.Setup(ctx, id, path); return err },
			func(ctx context.Context, id, path string) error { _, err := c.SetupSerially(ctx, id, path); return err },
			func(ctx context.Context, id, path string) error { return c.Remove(ctx, id, path) },
			func(ctx context.Context, id, path string) error { return c.Check(ctx, id, path) },
		}
	}
	c := h.theirs()
	return verbs{
		func(ctx context.Context, id, path string) error { _, err := c.Setup(ctx, id, path); return err },
		func(ctx context.Context, id, path string) error { _, err := c.SetupSerially(ctx, id, path); return err },
		func(ctx context.Context, id, path string) error { return c.Remove(ctx, id, path) },
		func(ctx context.Context, id, path string) error { return c.Check(ctx, id, path) },
	}
}

// spanRecorder records spans, and counts those that have not ended yet.
type spanRecorder struct {
	*tracetest.SpanRecorder
	open sync.WaitGroup
}

func (r *spanRecorder) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	r.open.Add(1)
	r.SpanRecorder.OnStart(ctx, s)
}

func (r *spanRecorder) OnEnd(s sdktrace.ReadOnlySpan) {
	r.SpanRecorder.OnEnd(s)
	r.open.Done()
}

// recorder is the provider of all tests. The global provider cannot be replaced
// for tracers that exist already.
func recorder(t *testing.T) *spanRecorder {
	t.Helper()
	r := &spanRecorder{SpanRecorder: tracetest.NewSpanRecorder()}
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return r
}

// trace runs f below the caller's span, and renders the spans that ended.
func (h *traced) trace(f func(context.Context)) []span {
	h.t.Helper()
	r := recorder(h.t)
	ctx, caller := otel.Tracer("caller").Start(h.t.Context(), "caller")
	f(ctx)
	caller.End()
	r.open.Wait() // go-cni's Setup can return before its networks' spans end
	all := r.Ended()
	byID := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range all {
		byID[s.SpanContext().SpanID()] = s
	}
	var spans []span
	for _, s := range all {
		name := s.Name()
		for p := byID[s.Parent().SpanID()]; p != nil; p = byID[p.Parent().SpanID()] {
			name = p.Name() + " > " + name
		}
		expect.That(h.t, s.SpanContext().TraceID() == caller.SpanContext().TraceID(), "%s is in a trace of its own", name)
		spans = append(spans, span{s, name})
	}
	return spans
}

type span struct {
	sdktrace.ReadOnlySpan
	name string // with its ancestors' names
}

func (s span) String() string {
	line := s.name + " by " + s.InstrumentationScope().Name
	var attrs []string
	for _, kv := range s.Attributes() {
		attrs = append(attrs, fmt.Sprintf("%s=%s(%s)", kv.Key, kv.Value.Emit(), kv.Value.Type()))
	}
	slices.Sort(attrs)
	line += " [" + strings.Join(attrs, " ") + "] " + s.Status().Code.String()
	if s.Status().Code == codes.Error && strings.Contains(s.Status().Description, "no more addresses") {
		line += ", the plugin's words"
	}
	return line + fmt.Sprintf(", %d events, %s", len(s.Events()), s.SpanKind())
}

// added reports whether a span is not one of go-cni's.
func (s span) added() bool {
	return s.Name() == "cni.plugin" || s.Name() == "cni.detachNetwork" || s.Name() == "cni.checkNetwork"
}

func rendered(spans []span, which func(span) bool) []string {
	lines := []string{}
	for _, s := range spans {
		if which(s) {
			lines = append(lines, s.String())
		}
	}
	slices.Sort(lines)
	return lines
}

// failing is a plugin's answer.
var failing = scripted.Action{Exit: 1, Stdout: func() *string { s := `{"code": 11, "msg": "no more addresses"}`; return &s }()}

// TestTheTraceIsGoCNIs compares names, parents, attributes and status for each
// method with a trace, with and without a failing plugin.
func TestTheTraceIsGoCNIs(t *testing.T) {
	attached := func(v verbs, h *traced) {
		t.Helper()
		h.must(v.setup(t.Context(), "c1", h.path))
	}
	for what, test := range map[string]struct {
		fails, at string // a plugin's type, and the verb
		before    func(v verbs, h *traced)
		call      func(v verbs) func(ctx context.Context, id, path string) error
	}{
		"Setup":                               {"", "", nil, func(v verbs) func(context.Context, string, string) error { return v.setup }},
		"SetupSerially":                       {"", "", nil, func(v verbs) func(context.Context, string, string) error { return v.setupSerially }},
		"Remove":                              {"", "", attached, func(v verbs) func(context.Context, string, string) error { return v.remove }},
		"Check":                               {"", "", attached, func(v verbs) func(context.Context, string, string) error { return v.check }},
		"Setup, the second network fails":     {"two-b", "ADD", nil, func(v verbs) func(context.Context, string, string) error { return v.setup }},
		"SetupSerially, the first one fails":  {"one-a", "ADD", nil, func(v verbs) func(context.Context, string, string) error { return v.setupSerially }},
		"SetupSerially, the second one fails": {"two-b", "ADD", nil, func(v verbs) func(context.Context, string, string) error { return v.setupSerially }},
		"Remove, the first one fails":         {"one-a", "DEL", attached, func(v verbs) func(context.Context, string, string) error { return v.remove }},
		"Remove, the last one fails":          {"two-b", "DEL", attached, func(v verbs) func(context.Context, string, string) error { return v.remove }},
		"Check, the first one fails":          {"one-a", "CHECK", attached, func(v verbs) func(context.Context, string, string) error { return v.check }},
	} {
		t.Run(what, func(t *testing.T) {
			h := newTraced(t)
			traceOf := func(ours bool) []span {
				if test.fails != "" {
					h.on(test.fails, nil)
				}
				v := h.verbsOf(ours)
				if test.before != nil {
					test.before(v, h)
				}
				if test.fails != "" {
					h.on(test.fails, map[string]scripted.Action{test.at: failing})
				}
				return h.trace(func(ctx context.Context) {
					err := test.call(v)(ctx, "c1", h.path)
					expect.That(t, (err != nil) == (test.fails != ""), "error %v", err)
				})
			}
			theirs := rendered(traceOf(false), func(span) bool { return true })
			ours := rendered(traceOf(true), func(s span) bool { return !s.added() })
			expect.Same(t, "spans", strings.Join(ours, "\n\t"), strings.Join(theirs, "\n\t"))
			expect.That(t, len(theirs) >= 2, "go-cni's has %q only", theirs)
		})
	}
}

// TestEachPluginHasASpan below its network's. It is the parent of the plugin's
// own spans.
func TestEachPluginHasASpan(t *testing.T) {
	h := newTraced(t)
	v := h.verbsOf(true)
	h.on("two-b", map[string]scripted.Action{"ADD": failing})
	spans := h.trace(func(ctx context.Context) {
		expect.Fails(t, "no error", v.setupSerially(ctx, "c1", h.path))
	})
	h.on("two-b", nil)
	h.must(v.setup(t.Context(), "c1", h.path))
	spans = append(spans, h.trace(func(ctx context.Context) {
		h.must(v.check(ctx, "c1", h.path))
		h.must(v.remove(ctx, "c1", h.path))
	})...)
	const scope = " by github.com/containerd/go-cni ["
	line := func(parents, attrs, status string) string {
		return parents + scope + attrs + "] " + status + ", 0 events, internal"
	}
	plugin := func(parents, typ, verb string) string {
		return line(parents+" > cni.plugin", "cni.plugin.kind=executable(STRING) cni.plugin.type="+typ+"(STRING) cni.plugin.verb="+verb+"(STRING)", "Unset")
	}
	network := func(span, ifname, name string) string {
		return line(span, "cni.ifname="+ifname+"(STRING) cni.name="+name+"(STRING)", "Unset")
	}
	const serially = "caller > cni.SetupSerially"
	want := []string{
		plugin(serially+" > cni.attachNetworksSerially", "one-a", "ADD"),
		plugin(serially+" > cni.attachNetworksSerially", "one-b", "ADD"),
		plugin(serially+" > cni.attachNetworksSerially", "two-a", "ADD"),
		line(serially+" > cni.attachNetworksSerially > cni.plugin", "cni.plugin.code=11(INT64) cni.plugin.kind=executable(STRING) "+
			"cni.plugin.type=two-b(STRING) cni.plugin.verb=ADD(STRING)", "Error, the plugin's words"),
	}
	for parent, verb := range map[string]string{serially + " > cni.detachNetwork": "DEL",
		"caller > cni.Check > cni.checkNetwork": "CHECK", "caller > cni.Remove > cni.detachNetwork": "DEL"} {
		for i, name := range []string{"one", "two"} {
			want = append(want, network(parent, fmt.Sprintf("eth%d", i), name), plugin(parent, name+"-a", verb), plugin(parent, name+"-b", verb))
		}
	}
	slices.Sort(want)
	expect.Same(t, "spans", strings.Join(rendered(spans, span.added), "\n\t"), strings.Join(want, "\n\t"))

	calls, err := scripted.Calls(filepath.Join(h.dir, "calls"))
	h.must(err)
	told := map[string]bool{}
	for _, c := range calls {
		for _, kv := range c.Env {
			if header, ok := strings.CutPrefix(kv, "TRACEPARENT="); ok {
				told[header] = true
			}
		}
	}
	for _, s := range spans {
		sc := s.SpanContext()
		expect.That(t, s.Name() != "cni.plugin" || told[fmt.Sprintf("00-%s-%s-01", sc.TraceID(), sc.SpanID())],
			"%s: the plugin was told another parent", s)
	}
}

// TestAnErrorOfNoNetworkIsTheMethodsStatus, because no other span would have
// it. go-cni drops it.
func TestAnErrorOfNoNetworkIsTheMethodsStatus(t *testing.T) {
	h := newTraced(t)
	v := h.verbsOf(true)
	spans := h.trace(func(ctx context.Context) {
		for _, call := range []func(context.Context, string, string) error{v.setup, v.setupSerially, v.check, v.remove} {
			expect.Fails(t, "an ID with a space is taken", call(ctx, "c 1", h.path))
		}
	})
	for _, s := range spans[:len(spans)-1] { // without the caller's
		expect.That(t, s.Status().Code == codes.Error && strings.Contains(s.Status().Description, "c 1"), "%s: %q", s, s.Status().Description)
	}
	expect.Same(t, "spans", len(spans), 5)
}

// TestOnlyTheFourMethodsBeginATrace: the other calls that run plugins continue
// the caller's trace, if there is one.
func TestOnlyTheFourMethodsBeginATrace(t *testing.T) {
	h := newTraced(t)
	for i, conf := range h.confs {
		h.confs[i] = []byte(strings.Replace(string(conf), `"1.0.0"`, `"1.1.0"`, 1))
	}
	r, ok := h.ours().(*cni.Runtime)
	if !ok {
		t.Fatal("no *cni.Runtime")
	}
	h.must(r.Load(cni.WithConfListBytes(h.confs[0]), cni.WithConfListBytes(h.confs[1])))
	h.must(func() error { _, err := r.Setup(t.Context(), "c1", h.path); return err }())
	for what, call := range map[string]func(context.Context) error{
		"STATUS": func(ctx context.Context) error { return r.StatusOf(ctx, h.confs...) },
		"GC":     func(ctx context.Context) error { _, err := r.GC(ctx, cni.GCOptions{Keep: []string{"c1"}}); return err },
	} {
		spans := h.trace(func(context.Context) { h.must(call(t.Context())) })
		if len(spans) != 1 { // the caller's
			t.Errorf("%s without a caller's span made %v", what, spans)
		}
		spans = h.trace(func(ctx context.Context) { h.must(call(ctx)) })
		plugins := rendered(spans, func(s span) bool { return s.name == "caller > cni.plugin" })
		expect.That(t, len(plugins) == 4, "%s below a caller's span made %v", what, spans)
	}
}

// TestSpansBeginWithTheProvider: a runtime makes spans from the moment when
// there is a provider, and none after the provider is gone.
func TestSpansBeginWithTheProvider(t *testing.T) {
	h := newTraced(t)
	v := h.verbsOf(true)
	h.must(v.setup(t.Context(), "c1", h.path))
	for range 2 { // the second time with another provider
		spans := h.trace(func(ctx context.Context) { h.must(v.check(ctx, "c1", h.path)) })
		expect.Same(t, "spans of Check", len(rendered(spans, func(s span) bool { return s.Name() == "cni.Check" })), 1)
		h.must(v.check(t.Context(), "c1", h.path))
	}
}
