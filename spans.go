package cni

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/chain"
)

// spanScope is the name of the tracer. It is go-cni's, so that a filter for go-cni's
// spans finds these.
const spanScope = "github.com/containerd/go-cni"

// spans makes OpenTelemetry spans with the global provider. A span that go-cni has
// too has go-cni's name, attributes and status:
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
type spans struct {
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
func (s *spans) provider() trace.TracerProvider {
	provider := otel.GetTracerProvider()
	idle := s.idle.Load()
	if idle != nil && idle.TracerProvider == provider && time.Since(idle.since) < idleFor {
		return nil
	}
	return provider
}

// below is provider for a span that needs a parent. It returns nil without a parent.
func (s *spans) below(ctx context.Context) trace.TracerProvider {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	return s.provider()
}

// start begins a span. It returns a nil span if the provider makes none.
func (s *spans) start(ctx context.Context, provider trace.TracerProvider, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	inner, span := provider.Tracer(spanScope).Start(ctx, name, trace.WithAttributes(attrs...))
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

// call begins the span of one of the interface's methods.
func (s *spans) call(ctx context.Context, name, id, path string) (context.Context, trace.Span) {
	provider := s.provider()
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, name, attribute.String("cni.id", id), attribute.String("cni.path", path))
}

// attach begins the span of an ADD. index is the network's in its Setup.
func (s *spans) attach(ctx context.Context, a *attachment, index int, serially bool) (context.Context, trace.Span) {
	if serially {
		return s.network(ctx, "cni.attachNetworksSerially", a)
	}
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, "cni.asynchAttach", attribute.Int("cni.index", index),
		attribute.String("cni.ifname", a.IfName), attribute.String("cni.name", a.network.config.Name))
}

// network begins the span of a verb on one network.
func (s *spans) network(ctx context.Context, name string, a *attachment) (context.Context, trace.Span) {
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, name,
		attribute.String("cni.ifname", a.IfName), attribute.String("cni.name", a.network.config.Name))
}

// plugin begins the span of a plugin's call.
func (s *spans) plugin(ctx context.Context, call chain.Call, kind PluginKind) (context.Context, trace.Span) {
	provider := s.below(ctx)
	if provider == nil {
		return ctx, nil
	}
	return s.start(ctx, provider, "cni.plugin", attribute.String("cni.plugin.type", call.Plugin),
		attribute.String("cni.plugin.verb", call.Verb), attribute.String("cni.plugin.kind", string(kind)))
}

// endSpan ends a span, if there is one, with the error as its status.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// endCall ends the span of a method. As with go-cni, the error of a network is the
// status of that network's span alone. Other errors are the status of this span.
func endCall(span trace.Span, err error) {
	if span == nil {
		return
	}
	left := (*LeftoverError)(nil)
	if errors.As(err, new(*Error)) && !(errors.As(err, &left) && len(left.Left) > 0) {
		err = nil
	}
	endSpan(span, err)
}

// endPlugin ends the span of a plugin's call, with the error code of the plugin.
func endPlugin(span trace.Span, err error) {
	if span == nil {
		return
	}
	var code uint
	if e := (*Error)(nil); errors.As(err, &e) {
		code = e.Code
	} else if e := (*types.Error)(nil); errors.As(err, &e) {
		code = e.Code
	}
	if code != 0 {
		span.SetAttributes(attribute.Int("cni.plugin.code", int(code)))
	}
	endSpan(span, err)
}
