package metrics_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/embedcni/cni/thick/metrics"
	"github.com/embedcni/cni/thick/server"
)

// A daemon serves its metrics beside its calls, at an address of their own.
func Example() {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.New(full{}, server.Options{Observe: m.Request})
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Server(s.Stats); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	scraped := httptest.NewServer(mux) // in a daemon an http.Server with the address that is scraped
	defer scraped.Close()

	// What a client asks for: here without the socket, which Listen makes.
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/cni", strings.NewReader(`{
		"env":    {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "web", "CNI_NETNS": "/run/netns/web"},
		"config": {"cniVersion": "1.1.0", "name": "podnet", "type": "shim"}
	}`)))
	answer, err := http.Get(scraped.URL + "/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, "{"); strings.HasSuffix(name, "_total") && !strings.HasSuffix(line, " 0\n") {
			fmt.Print(line)
		}
	}
	// Output:
	// embedcni_server_call_errors_total{code="11",verb="ADD"} 1
	// embedcni_server_requests_total{code="400",handler="/cni",method="POST"} 1
}
