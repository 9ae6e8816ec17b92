package spans

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestNothingIsMadeForASpanThatNobodyWants: no allocation on the way to a plugin
// and back, with a span of the caller's or without.
func TestNothingIsMadeForASpanThatNobodyWants(t *testing.T) {
	s := &Spans{}
	failed := errors.New("x")
	for what, ctx := range map[string]context.Context{"without a parent": context.Background(), "with one": callersSpan()} {
		if got := testing.AllocsPerRun(1000, func() {
			inner, setup := s.Call(ctx, "cni.Setup", "c1", "/run/netns/c1")
			inner, network := s.Attach(inner, "net", "eth0", 0, false)
			inner, verb := s.Network(inner, "cni.checkNetwork", "net", "eth0")
			inner, plugin := s.Plugin(inner, "p", "ADD", "built in")
			if inner != ctx || setup != nil || network != nil || verb != nil || plugin != nil {
				t.Error("a span was made")
			}
			EndPlugin(plugin, 7, failed)
			End(verb, failed)
			End(network, failed)
			End(setup, nil)
		}); got != 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
	}
}

// callersSpan is the context of a caller that makes spans of its own, by a provider
// that is not the global one.
func callersSpan() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
}

func BenchmarkSpansThatNobodyWants(b *testing.B) {
	s := &Spans{}
	b.ReportAllocs()
	for b.Loop() {
		ctx, span := s.Call(b.Context(), "cni.Setup", "c1", "/run/netns/c1")
		_, plugin := s.Plugin(ctx, "p", "ADD", "built in")
		EndPlugin(plugin, 0, nil)
		End(span, nil)
	}
}
