package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
)

// collector returns the endpoint that OpenTelemetry's variables of the environment name, empty if
// there is none. It refuses those that its exporter would not follow.
func collector(env func(string) string) (endpoint string, err error) {
	endpoint = cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT"))
	exporter := cmp.Or(env("OTEL_TRACES_EXPORTER"), "otlp")
	if endpoint == "" || exporter == "none" || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return "", nil
	}
	if exporter != "otlp" {
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q: want otlp or none", exporter)
	}
	protocol := cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), env("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "http/protobuf" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: want http/protobuf, which collectors take at port 4318", protocol)
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT is %q: want a URL, such as http://127.0.0.1:4318", endpoint)
	}
	return at.Redacted(), nil
}

// flushWithin is how long the last spans have to reach the collector, after the last call.
const flushWithin = 2 * time.Second

// trace has the library's spans sent, if the environment names a collector. end sends the last
// ones. Without a collector there is no provider, and no span is made.
func trace(env func(string) string, version string, log *slog.Logger) (end func(), err error) {
	endpoint, err := collector(env)
	if endpoint == "" || err != nil {
		return func() {}, err
	}
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", "error", err) }))
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		return nil, err
	}
	described, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName(program), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(described), sdktrace.WithBatcher(exporter))
	otel.SetTracerProvider(provider)
	log.Info("traces are sent", "to", endpoint)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("traces are not sent", "error", err)
		}
	}, nil
}
