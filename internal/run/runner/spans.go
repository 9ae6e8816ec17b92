package runner

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/run/chain"
)

// OpenTelemetry spans are made with the global provider. A span that go-cni has too has
// go-cni's name, attributes and status:
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

// scope is the name of the tracer. It is go-cni's, so that a filter for go-cni's
// spans finds these.
const scope = "github.com/containerd/go-cni"

// hasParent reports whether ctx has a span. All spans but those of CallSpan need one, and
// callers ask before they make attributes.
func hasParent(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

// startSpan begins a span. It returns a nil span if the provider makes none.
func startSpan(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	inner, span := otel.GetTracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(attrs...))
	if span.SpanContext().SpanID() == trace.SpanContextFromContext(ctx).SpanID() {
		return ctx, nil // the provider returned the parent, or an empty span
	}
	return inner, span
}

// CallSpan begins the span of a method of the interface.
func CallSpan(ctx context.Context, name, id, path string) (context.Context, trace.Span) {
	return startSpan(ctx, name, attribute.String("cni.id", id), attribute.String("cni.path", path))
}

// AttachSpan begins the span of an ADD. index is the network's in its Setup.
func AttachSpan(ctx context.Context, network, ifName string, index int, serially bool) (context.Context, trace.Span) {
	if serially {
		return NetworkSpan(ctx, "cni.attachNetworksSerially", network, ifName)
	}
	if !hasParent(ctx) {
		return ctx, nil
	}
	return startSpan(ctx, "cni.asynchAttach", attribute.Int("cni.index", index),
		attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// NetworkSpan begins the span of a verb on one network.
func NetworkSpan(ctx context.Context, name, network, ifName string) (context.Context, trace.Span) {
	if !hasParent(ctx) {
		return ctx, nil
	}
	return startSpan(ctx, name, attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// traced begins the span of a plugin's call, which end ends with its error, and with the
// code of the plugin, if it gave one.
func traced(ctx context.Context, call chain.Call, kind Kind) (_ context.Context, end func(error)) {
	if !hasParent(ctx) {
		return ctx, func(error) {}
	}
	ctx, span := startSpan(ctx, "cni.plugin", attribute.String("cni.plugin.type", call.Plugin),
		attribute.String("cni.plugin.verb", call.Verb), attribute.String("cni.plugin.kind", string(kind)))
	return ctx, func(err error) {
		said := (*types.Error)(nil)
		if span != nil && errors.As(err, &said) && !errors.As(err, new(*stoppedError)) {
			span.SetAttributes(attribute.Int("cni.plugin.code", int(said.Code)))
		}
		EndSpan(span, err)
	}
}

// EndSpan ends a span, if there is one, with the error as its status.
func EndSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
