package daemon

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheEnvironmentNamesTheCollector, or none.
func TestTheEnvironmentNamesTheCollector(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for env, want := range map[string]string{
		"":                                      "",
		endpoint:                                "http://c:4318",
		endpoint + " OTEL_SDK_DISABLED=true":    "",
		endpoint + " OTEL_TRACES_EXPORTER=none": "",
		endpoint + " OTEL_TRACES_EXPORTER=otlp": "http://c:4318",
		endpoint + " OTEL_TRACES_EXPORTER=zipkin":                    `OTEL_TRACES_EXPORTER is "zipkin": want otlp or none`,
		endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc":               `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": want http/protobuf, which collectors take at port 4318`,
		endpoint + " OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/x": "https://t/x",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=c:4318":                  `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is "c:4318": want a URL, such as http://127.0.0.1:4318`,
	} {
		vars := map[string]string{}
		for _, entry := range strings.Fields(env) {
			name, value, _ := strings.Cut(entry, "=")
			vars[name] = value
		}
		got, err := collector(func(name string) string { return vars[name] })
		if err != nil {
			got = err.Error()
		}
		expect.Same(t, env, got, want)
	}
}
