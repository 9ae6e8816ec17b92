package server

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/thick/internal/wire"
)

// scope is the name of the tracer.
const scope = "github.com/embedcni/cni/thick/server"

// traced returns ctx with the trace in a request's header (W3C Trace Context, section 3; W3C
// Baggage).
func traced(ctx context.Context, header propagation.TextMapCarrier) context.Context {
	return propagation.Baggage{}.Extract(propagation.TraceContext{}.Extract(ctx, header), header)
}

// startSpan begins the span of a call, named cni.ADD and so on. It continues the client's trace. ADD,
// DEL and CHECK without one begin a trace. Other verbs do not, since runtimes ask for STATUS every
// few seconds. Without a provider the span records nothing, and plugins still get the client's trace.
func startSpan(r *http.Request, verb string) (context.Context, trace.Span) {
	ctx := traced(r.Context(), propagation.HeaderCarrier(r.Header))
	begins := verb == wire.Add || verb == wire.Del || verb == wire.Check
	if !begins && !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, trace.SpanFromContext(ctx)
	}
	return otel.GetTracerProvider().Tracer(scope).Start(ctx, "cni."+cmp.Or(verb, "call"), trace.WithSpanKind(trace.SpanKindServer))
}

// endSpan ends the span of a call with all that is known of it. Names of attributes are
// OpenTelemetry's where it has one (semantic conventions for HTTP, errors and Kubernetes), and
// else go-cni's.
func endSpan(span trace.Span, o *Observation, err error) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
		span.SetStatus(codes.Error, err.Error())
		code := codeOf(err)
		span.SetAttributes(attribute.Int("cni.code", int(code)), attribute.String("error.type", strconv.FormatUint(uint64(code), 10)))
	}
	span.SetAttributes(
		attribute.String("http.request.method", o.Method), attribute.String("http.route", o.Path), attribute.Int("http.response.status_code", status),
		attribute.Float64("cni.queued_seconds", o.Queued.Seconds()),
	)
	for _, a := range []attribute.KeyValue{
		attribute.String("cni.id", o.ContainerID), attribute.String("cni.ifname", o.IfName), attribute.String("cni.name", o.Network),
		attribute.String("k8s.namespace.name", o.Pod.Namespace), attribute.String("k8s.pod.name", o.Pod.Name), attribute.String("k8s.pod.uid", o.Pod.UID),
	} {
		if a.Value.AsString() != "" {
			span.SetAttributes(a)
		}
	}
}
