package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
)

// collector returns the address of a collector from OpenTelemetry's variables of the environment
// (specification, "OpenTelemetry Protocol Exporter"), empty if they name none. The exporter
// reads the same variables, and takes its defaults in the place of a mistake: that is an error
// here.
func collector(env func(string) string) (endpoint string, err error) {
	variable := func(name string) (of, value string) {
		if of = "OTEL_EXPORTER_OTLP_TRACES_" + name; env(of) != "" {
			return of, env(of)
		}
		of = "OTEL_EXPORTER_OTLP_" + name
		return of, env(of)
	}
	name, endpoint := variable("ENDPOINT")
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" || endpoint == "" {
		return "", nil
	}
	if exporter := cmp.Or(env("OTEL_TRACES_EXPORTER"), "otlp"); exporter != "otlp" {
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q: want otlp or none", exporter)
	}
	if of, protocol := variable("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return "", fmt.Errorf("%s is %q: want http/protobuf, which collectors take at port 4318", of, protocol)
	}
	if at, err := url.Parse(endpoint); err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return "", fmt.Errorf("%s is %q: want a URL, such as http://127.0.0.1:4318", name, endpoint)
	}
	return endpoint, nil
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
	exporter, err := otlptracehttp.New(context.Background())
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", "error", err) }))
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
		if err := provider.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			log.Warn("traces are not sent", "error", err)
		}
	}, nil
}
