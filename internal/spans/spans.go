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

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the tracer. It is go-cni's, so that a filter for go-cni's
// spans finds these.
const scope = "github.com/containerd/go-cni"

// hasParent reports whether ctx has a span. All spans but those of Call need one, and
// callers ask before they make attributes.
func hasParent(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

// start begins a span. It returns a nil span if the provider makes none.
func start(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	inner, span := otel.GetTracerProvider().Tracer(scope).Start(ctx, name, trace.WithAttributes(attrs...))
	if span.SpanContext().SpanID() == trace.SpanContextFromContext(ctx).SpanID() {
		return ctx, nil // the provider returned the parent, or an empty span
	}
	return inner, span
}

// Call begins the span of a method of the interface.
func Call(ctx context.Context, name, id, path string) (context.Context, trace.Span) {
	return start(ctx, name, attribute.String("cni.id", id), attribute.String("cni.path", path))
}

// Attach begins the span of an ADD. index is the network's in its Setup.
func Attach(ctx context.Context, network, ifName string, index int, serially bool) (context.Context, trace.Span) {
	if serially {
		return Network(ctx, "cni.attachNetworksSerially", network, ifName)
	}
	if !hasParent(ctx) {
		return ctx, nil
	}
	return start(ctx, "cni.asynchAttach", attribute.Int("cni.index", index),
		attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// Network begins the span of a verb on one network.
func Network(ctx context.Context, name, network, ifName string) (context.Context, trace.Span) {
	if !hasParent(ctx) {
		return ctx, nil
	}
	return start(ctx, name, attribute.String("cni.ifname", ifName), attribute.String("cni.name", network))
}

// Plugin begins the span of a plugin call.
func Plugin(ctx context.Context, typ, verb, kind string) (context.Context, trace.Span) {
	if !hasParent(ctx) {
		return ctx, nil
	}
	return start(ctx, "cni.plugin", attribute.String("cni.plugin.type", typ),
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
