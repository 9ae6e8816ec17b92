package runner

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/run/chain"
)

// TestNoSpanWithoutAProvider: with a span of the caller's or without, and without a
// parent nothing is made on the way to a plugin and back.
func TestNoSpanWithoutAProvider(t *testing.T) {
	failed := errors.New("x")
	below := func(ctx context.Context) {
		inner, network := AttachSpan(ctx, "net", "eth0", 0, false)
		inner, verb := NetworkSpan(inner, "cni.checkNetwork", "net", "eth0")
		inner, end := traced(inner, chain.Call{Plugin: "p", Verb: "ADD"}, BuiltIn)
		if inner != ctx || network != nil || verb != nil {
			t.Error("a span was made")
		}
		end(failed)
		EndSpan(verb, failed)
		EndSpan(network, failed)
	}
	for _, ctx := range []context.Context{context.Background(), callersSpan()} {
		inner, setup := CallSpan(ctx, "cni.Setup", "c1", "/run/netns/c1")
		if inner != ctx || setup != nil {
			t.Error("a span was made")
		}
		below(inner)
		EndSpan(setup, nil)
	}
	if got := testing.AllocsPerRun(1000, func() { below(context.Background()) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// callersSpan returns the context of a caller with its own spans, from a
// provider that is not the global one.
func callersSpan() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
}
