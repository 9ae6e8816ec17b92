package invoke

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// TraceEnv returns the variables that make a plugin's spans children of the span
// in ctx: TRACEPARENT, and TRACESTATE and BAGGAGE if they are not empty. Without
// a valid span it returns nil. libcni's own executor passes the same, following
// OpenTelemetry's proposal 0258, "environment variables as context propagation
// carriers".
func TraceEnv(ctx context.Context) []string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	var env []string
	// The proposal's names are the headers' of W3C Trace Context in upper case.
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := headers.Get(name); value != "" {
			env = append(env, strings.ToUpper(name)+"="+value)
		}
	}
	if value := baggage.FromContext(ctx).String(); value != "" {
		env = append(env, "BAGGAGE="+value)
	}
	return env
}
