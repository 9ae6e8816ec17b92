package cni

import (
	"context"
	"errors"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/chain"
)

// TestNothingIsMadeForASpanThatNobodyWants: no allocation on the way to a plugin
// and back, with a span of the caller's or without.
func TestNothingIsMadeForASpanThatNobodyWants(t *testing.T) {
	s := &spans{}
	a := &attachment{network: &Network{config: &libcni.NetworkConfigList{Name: "net"}}}
	a.IfName = "eth0"
	call, failed := chain.Call{Verb: "ADD", Plugin: "p"}, errors.New("x")
	for what, ctx := range map[string]context.Context{"without a parent": context.Background(), "with one": callersSpan()} {
		if got := testing.AllocsPerRun(1000, func() {
			inner, setup := s.call(ctx, "cni.Setup", "c1", "/run/netns/c1")
			inner, network := s.attach(inner, a, 0, false)
			inner, verb := s.network(inner, "cni.checkNetwork", a)
			inner, plugin := s.plugin(inner, call, PluginBuiltIn)
			if inner != ctx || setup != nil || network != nil || verb != nil || plugin != nil {
				t.Error("a span was made")
			}
			endPlugin(plugin, failed)
			endSpan(verb, failed)
			endSpan(network, failed)
			endCall(setup, nil)
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
	s := &spans{}
	b.ReportAllocs()
	for b.Loop() {
		ctx, span := s.call(b.Context(), "cni.Setup", "c1", "/run/netns/c1")
		_, plugin := s.plugin(ctx, chain.Call{Verb: "ADD", Plugin: "p"}, PluginBuiltIn)
		endPlugin(plugin, nil)
		endCall(span, nil)
	}
}
