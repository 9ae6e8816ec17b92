package daemon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheEnvironmentNamesTheCollector, or none.
func TestTheEnvironmentNamesTheCollector(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for env, want := range map[string]string{
		"":                                      "none",
		endpoint:                                "http://c:4318/v1/traces 10s map[]",
		endpoint + "/otel/":                     "http://c:4318/otel/v1/traces 10s map[]",
		endpoint + " OTEL_SDK_DISABLED=true":    "none",
		endpoint + " OTEL_TRACES_EXPORTER=none": "none",
		endpoint + " OTEL_TRACES_EXPORTER=otlp": "http://c:4318/v1/traces 10s map[]",
		endpoint + " OTEL_TRACES_EXPORTER=zipkin":                                                           `OTEL_TRACES_EXPORTER is "zipkin": want otlp or none`,
		endpoint + " OTEL_EXPORTER_OTLP_TIMEOUT=1":                                                          "http://c:4318/v1/traces 1ms map[]",
		endpoint + " OTEL_EXPORTER_OTLP_TIMEOUT=x":                                                          `OTEL_EXPORTER_OTLP_TIMEOUT is "x": want milliseconds`,
		endpoint + " OTEL_EXPORTER_OTLP_HEADERS=a=1,b=%20":                                                  "http://c:4318/v1/traces 10s map[a:1 b: ]",
		endpoint + " OTEL_EXPORTER_OTLP_HEADERS=a":                                                          "OTEL_EXPORTER_OTLP_HEADERS: want name=value,…: ",
		endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                                      `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": want http/protobuf`,
		endpoint + " OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/x OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=2000": "https://t/x 2s map[]",
		endpoint + " OTEL_EXPORTER_OTLP_COMPRESSION=gzip":                                                   `OTEL_EXPORTER_OTLP_COMPRESSION is "gzip": it is not supported`,
		endpoint + " OTEL_EXPORTER_OTLP_COMPRESSION=none":                                                   "http://c:4318/v1/traces 10s map[]",
		endpoint + " OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=/k":                                               `OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY is "/k": it is not supported`,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=c:4318":                                                         `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is "c:4318": want a URL`,
	} {
		vars := map[string]string{}
		for _, entry := range strings.Fields(env) {
			name, value, _ := strings.Cut(entry, "=")
			vars[name] = value
		}
		o, err := newOTLP(func(name string) string { return vars[name] })
		got := "none"
		if err != nil {
			got = err.Error()
		} else if o != nil {
			got = fmt.Sprint(o.url, " ", o.client.Timeout, " ", o.headers)
		}
		expect.That(t, strings.HasPrefix(got, want), "%s: %s, want %s", env, got, want)
	}
}
