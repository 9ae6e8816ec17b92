package runner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
)

// failedCall is the failure of an executable with exit code 1.
func failedCall(stdout, stderr string) Failure {
	return *failure(chain.Call{Verb: "ADD", Plugin: "x"}, Executable,
		invoke.Output{Stdout: []byte(stdout), Stderr: []byte(stderr)}, &invoke.ExitError{Path: "/bin/x", Code: 1})
}

func TestPluginsErrorIsRead(t *testing.T) {
	got := failedCall(`{"cniVersion": "1.0.0", "code": 11, "msg": "no more", "details": "10.0.0.0/8"}`, "log\n")
	want := Failure{Verb: "ADD", Plugin: "x", Kind: Executable, Code: 11, Msg: "no more", Details: "10.0.0.0/8", Stderr: "log\n"}
	var said *types.Error
	expect.That(t, errors.As(got.Err, &said) && *said == (types.Error{Code: 11, Msg: "no more", Details: "10.0.0.0/8"}), "the cause is %#v", got.Err)
	got.Err = nil
	expect.That(t, got == want, "got %#v, want %#v", got, want)
}

// TestMisleadingOutputOfAFailedPlugin: output beside an exit code of 1 counts
// as an error only if it is one, and is never lost.
func TestMisleadingOutputOfAFailedPlugin(t *testing.T) {
	const exit = "exit status 1"
	long := strings.Repeat("y", 600)
	for stdout, want := range map[string][]string{
		"":                          {"ended without an error message", exit},
		"{}":                        {"what it printed is no error", exit, `"{}"`},
		"null":                      {"what it printed is no error", exit, `"null"`},
		`{"cniVersion": "1.0.0"}`:   {"what it printed is no error", exit, "cniVersion"},
		`{"ips": [], "dns": {}}`:    {"what it printed is no error", exit, "ips"},
		`{"code": 7, "msg": "half`:  {"what it printed is no error", exit, "half", "unexpected end of JSON input"},
		"<html>502</html>":          {"what it printed is no error", exit, "<html>502</html>", "invalid character"},
		"panic: oh\n\ngoroutine 1":  {"what it printed is no error", exit, `panic: oh\n\ngoroutine 1`},
		`{"code": "7", "msg": "x"}`: {"what it printed is no error", exit, "cannot unmarshal string"},
		`[1]`:                       {"what it printed is no error", exit, "[1]"},
		`text {"code": 7}`:          {"what it printed is no error", exit, "text"},
		long:                        {"what it printed is no error", strings.Repeat("y", 512) + `"… (600 bytes)`},
	} {
		f := failedCall(stdout, "last words")
		expect.That(t, f.Code == 0 && f.Msg == "" && f.Details == "" && f.Stderr == "last words", "%.40q: read as code %d, %q", stdout, f.Code, f.Msg)
		for _, w := range want {
			expect.That(t, strings.Contains(f.Err.Error(), w), "%.40q: %v lacks %q", stdout, f.Err, w)
		}
		var ended *invoke.ExitError
		expect.That(t, errors.As(f.Err, &ended) && ended.Code == 1, "%.40q: the exit is not behind %v", stdout, f.Err)
	}
}

func TestAnErrorOfADelegateHasAText(t *testing.T) {
	err := delegateError(chain.Call{Plugin: "x"}, invoke.Output{Stdout: []byte(`{"code": 7}`)}, &invoke.ExitError{Path: "/bin/x", Code: 1})
	expect.That(t, err != nil && err.Error() == NoMessage, "got %v, want %q", err, NoMessage)
}

// TestNoSpanWithoutAProvider: with a span of the caller's or without, and without a
// parent nothing is made on the way to a plugin and back.
func TestNoSpanWithoutAProvider(t *testing.T) {
	failed := errors.New("x")
	below := func(ctx context.Context) {
		inner, network := AttachSpan(ctx, "net", "eth0", 0, false)
		inner, verb := NetworkSpan(inner, "cni.checkNetwork", "net", "eth0")
		inner, end := traced(inner, chain.Call{Plugin: "p", Verb: "ADD"}, BuiltIn)
		expect.That(t, inner == ctx && network == nil && verb == nil, "a span was made")
		end(failed)
		EndSpan(verb, failed)
		EndSpan(network, failed)
	}
	for _, ctx := range []context.Context{context.Background(), callersSpan()} {
		inner, setup := CallSpan(ctx, "cni.Setup", "c1", "/run/netns/c1")
		expect.That(t, inner == ctx && setup == nil, "a span was made")
		below(inner)
		EndSpan(setup, nil)
	}
	expect.Same(t, "allocations", testing.AllocsPerRun(1000, func() { below(context.Background()) }), 0)
}

// callersSpan returns the context of a caller with its own spans, from a
// provider that is not the global one.
func callersSpan() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
}
