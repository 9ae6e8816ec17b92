package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// otlp sends spans to a collector, as OTLP over HTTP with protobuf. It is configured by
// OpenTelemetry's variables of the environment (specification, "OpenTelemetry Protocol Exporter").
// OpenTelemetry's own client would bring gRPC with it: 90 packages and 3 MB.
type otlp struct {
	url     string
	headers map[string]string
	client  http.Client // with the time of one request
}

var _ otlptrace.Client = (*otlp)(nil)

// newOTLP reads the environment. It returns nil if that names no collector.
func newOTLP(env func(string) string) (*otlp, error) {
	variable := func(name string) (of, value string) {
		if of = "OTEL_EXPORTER_OTLP_TRACES_" + name; env(of) != "" {
			return of, env(of)
		}
		of = "OTEL_EXPORTER_OTLP_" + name
		return of, env(of)
	}
	name, endpoint := variable("ENDPOINT")
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" || endpoint == "" {
		return nil, nil
	}
	if exporter := cmp.Or(env("OTEL_TRACES_EXPORTER"), "otlp"); exporter != "otlp" {
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: want otlp or none", exporter)
	}
	if of, protocol := variable("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("%s is %q: want http/protobuf, which collectors take at port 4318", of, protocol)
	}
	for _, more := range []string{"COMPRESSION", "CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if of, value := variable(more); value != "" && value != "none" {
			return nil, fmt.Errorf("%s is %q: it is not supported; a collector beside the daemon can do that", of, value)
		}
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("%s is %q: want a URL, such as http://127.0.0.1:4318", name, endpoint)
	}
	if name == "OTEL_EXPORTER_OTLP_ENDPOINT" { // that of all signals
		at = at.JoinPath("v1", "traces")
	}
	o := &otlp{url: at.String(), headers: map[string]string{}, client: http.Client{Timeout: 10 * time.Second}}
	if of, text := variable("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return nil, fmt.Errorf("%s is %q: want milliseconds", of, text)
		}
		o.client.Timeout = time.Duration(ms) * time.Millisecond
	}
	of, text := variable("HEADERS")
	fields, err := baggage.Parse(text) // it has the same form
	if err != nil {
		return nil, fmt.Errorf("%s: want name=value,…: %w", of, err)
	}
	for _, f := range fields.Members() {
		o.headers[f.Key()] = f.Value()
	}
	return o, nil
}

// Start does nothing: each request is one of its own.
func (o *otlp) Start(context.Context) error { return nil }

// Stop does nothing.
func (o *otlp) Stop(context.Context) error { return nil }

// UploadTraces sends spans. TracesData has the form of the collector's request.
func (o *otlp) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	for name, value := range o.headers {
		r.Header.Set(name, value)
	}
	answer, err := o.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s: %s", o.url, answer.Status, said)
	}
	return err
}

// flushWithin is how long the last spans have to reach the collector, after the last call.
const flushWithin = 2 * time.Second

// trace has the library's spans sent, if the environment names a collector. end sends the last
// ones. Without a collector there is no provider, and no span is made.
func trace(env func(string) string, version string, log *slog.Logger) (end func(), err error) {
	client, err := newOTLP(env)
	if client == nil || err != nil {
		return func() {}, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", "error", err) }))
	described, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(semconv.ServiceName(program), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(described), sdktrace.WithBatcher(otlptrace.NewUnstarted(client)))
	otel.SetTracerProvider(provider)
	log.Info("traces are sent", "to", client.url)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
			log.Warn("traces are not sent", "error", err)
		}
	}, nil
}
