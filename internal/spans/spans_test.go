package spans

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestNoSpanWithoutAProvider: with a span of the caller's or without, and without a
// parent nothing is made on the way to a plugin and back.
func TestNoSpanWithoutAProvider(t *testing.T) {
	failed := errors.New("x")
	below := func(ctx context.Context) {
		inner, network := Attach(ctx, "net", "eth0", 0, false)
		inner, verb := Network(inner, "cni.checkNetwork", "net", "eth0")
		inner, plugin := Plugin(inner, "p", "ADD", "built in")
		if inner != ctx || network != nil || verb != nil || plugin != nil {
			t.Error("a span was made")
		}
		EndPlugin(plugin, 7, failed)
		End(verb, failed)
		End(network, failed)
	}
	for _, ctx := range []context.Context{context.Background(), callersSpan()} {
		inner, setup := Call(ctx, "cni.Setup", "c1", "/run/netns/c1")
		if inner != ctx || setup != nil {
			t.Error("a span was made")
		}
		below(inner)
		End(setup, nil)
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
