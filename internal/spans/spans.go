// Package spans makes OpenTelemetry spans with the global provider. A span that
// go-cni has too has go-cni's name, attributes and status:
//
//	cni.Setup                    cni.id, cni.path
//	    cni.asynchAttach         cni.index, cni.ifname, cni.name
//	        cni.plugin           cni.plugin.type, .verb, .kind, .code
//	cni.SetupSerially            cni.id, cni.path
//	    cni.attachNetworksSerially   cni.ifname, cni.name
//	cni.Remove, cni.Check        cni.id, cni.path
//	    cni.detachNetwork, cni.checkNetwork   cni.ifname, cni.name
//
// The spans of plugins, and of networks below Remove and Check, are additions. Below
// methods without a span they continue the caller's trace. They never begin a trace,
// since a STATUS every few seconds would begin one each time.
package spans

import (
	"context"
	"reflect"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the tracer. It is go-cni's, so that a filter for go-cni's
// spans finds these.
const scope = "github.com/containerd/go-cni"

// Spans makes spans. The zero value is ready to use, by several goroutines at once.
type Spans struct {
	idle atomic.Pointer[idleProvider]
}

// idleProvider is a provider that made no span, such as the no-op provider.
type idleProvider struct {
	trace.TracerProvider
	since time.Time
}

// idleFor is the time after which an idle provider is asked again. The program may
// set a provider later, to which the global one then forwards.
const idleFor = time.Second

// provider returns the global provider, or nil if it makes no spans. Callers ask
// before they make attributes.
func (s *Spans) provider() trace.TracerProvider {
	provider := otel.GetTracerProvider()
	idle := s.idle.Load()
	if idle != nil && idle.TracerProvider == provider && time.Since(idle.since) < idleFor {
		return nil
	}
	return provider
}

// below is provider for a span that needs a parent. It returns nil without a parent.
func (s *Spans) below(ctx context.Context) trace.TracerProvider {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	return s.provider()
}

// start begins a span. It returns a nil span if the provider makes none.
func (s *Spans) start(ctx context.Context, provider trace.TracerProvider, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	inner, span := provider.Tracer(scope).Start(ctx, name, trace.WithAttributes(attrs...))
	if span.SpanContext().SpanID() != trace.SpanContextFromContext(ctx).SpanID() {
		return inner, span
	}
	// The provider made no span: it returned the parent, or an empty span. Only
	// providers that are pointers are remembered, since comparing others may panic.
	if reflect.TypeOf(provider).Kind() == reflect.Pointer {
		s.idle.Store(&idleProvider{provider, time.Now()})
	}
	return ctx, nil
}

// Call begins the span of a method of the interface.
func (s *Spans) Call(ctx context.Context, name, id, path string) (context.Context, trace.Span) {
	provider := s.provider()
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, name, attribute.String("cni.id", id), attribute.String("cni.path", path))
}

// Attach begins the span of an ADD. index is the network's in its Setup.
func (s *Spans) Attach(ctx context.Context, network, ifName string, index int, serially bool) (context.Context, trace.Span) {
	if serially {
		return s.Network(ctx, "cni.attachNetworksSerially", network, ifName)
	}
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, "cni.asynchAttach", attribute.Int("cni.index", index),
		attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// Network begins the span of a verb on one network.
func (s *Spans) Network(ctx context.Context, name, network, ifName string) (context.Context, trace.Span) {
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, name, attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// Plugin begins the span of a plugin call.
func (s *Spans) Plugin(ctx context.Context, typ, verb, kind string) (context.Context, trace.Span) {
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, "cni.plugin", attribute.String("cni.plugin.type", typ),
		attribute.String("cni.plugin.verb", verb), attribute.String("cni.plugin.kind", kind))
}

// End ends a span, if there is one, with the error as its status.
func End(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// EndPlugin ends the span of a plugin call, with the error code of the plugin, if it
// gave one.
func EndPlugin(span trace.Span, code uint, err error) {
	if span == nil {
		return
	}
	if code != 0 {
		span.SetAttributes(attribute.Int("cni.plugin.code", int(code)))
	}
	End(span, err)
}
