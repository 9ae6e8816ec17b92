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

// spanScope is the name of the tracer: go-cni's, so that what picks its spans out
// by that finds these.
const spanScope = "github.com/containerd/go-cni"

// spans makes OpenTelemetry spans by the global provider. Names, attributes and
// status are go-cni's where it has the span:
//
//	cni.Setup                    cni.id, cni.path
//	    cni.asynchAttach         cni.index, cni.ifname, cni.name
//	        cni.plugin           cni.plugin.type, .verb, .kind, .code
//	cni.SetupSerially            cni.id, cni.path
//	    cni.attachNetworksSerially   cni.ifname, cni.name
//	cni.Remove, cni.Check        cni.id, cni.path
//	    cni.detachNetwork, cni.checkNetwork   cni.ifname, cni.name
//
// Those of single plugins, and of networks below Remove and Check, are additions.
// They continue a trace, those of other methods the caller's, and begin none: a
// STATUS that is asked for every few seconds makes no trace each time.
type spans struct {
	idle atomic.Pointer[idleProvider]
}

// idleProvider is one that made no span, as the one that stands for none.
type idleProvider struct {
	trace.TracerProvider
	since time.Time
}

// idleFor is how long an idle provider is not asked again. It may be one that is
// told later where spans go.
const idleFor = time.Second

// provider returns nil if nobody wants spans. Then nothing is to be made for one:
// callers ask before they make attributes.
func (s *spans) provider() trace.TracerProvider {
	provider := otel.GetTracerProvider()
	idle := s.idle.Load()
	if idle != nil && idle.TracerProvider == provider && time.Since(idle.since) < idleFor {
		return nil
	}
	return provider
}

// below is provider for a span that needs a parent.
func (s *spans) below(ctx context.Context) trace.TracerProvider {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	return s.provider()
}

// start begins a span; nil if the provider makes none.
func (s *spans) start(ctx context.Context, provider trace.TracerProvider, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	inner, span := provider.Tracer(spanScope).Start(ctx, name, trace.WithAttributes(attrs...))
	if span.SpanContext().SpanID() != trace.SpanContextFromContext(ctx).SpanID() {
		return inner, span
	}
	// The parent itself, or nothing. Only pointers can be compared without fear.
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

// attach begins the span of an ADD of a network, the index-th of its Setup.
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

// endCall ends the span of a method. As with go-cni it has no status for the error
// of a network, which that network's span has; it has one for an error that no
// other span has.
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

// endPlugin ends the span of a plugin's call, with the code that the plugin gave.
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
