package metrics_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/embedcni/cni/thick/metrics"
	"github.com/embedcni/cni/thick/server"
)

// A daemon serves its metrics beside its calls, on the same socket.
func Example() {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		log.Fatal(err)
	}
	other := http.NewServeMux()
	other.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s, err := server.New(full{}, server.Options{Observe: m.Request, Other: other})
	if err != nil {
		log.Fatal(err)
	}

	// What clients ask for: here without the socket, which Listen makes.
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w
	}
	ask(http.MethodPost, "/cni", `{
		"env":    {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "web", "CNI_NETNS": "/run/netns/web"},
		"config": {"cniVersion": "1.1.0", "name": "podnet", "type": "shim"}
	}`)
	for line := range strings.Lines(ask(http.MethodGet, "/metrics", "").Body.String()) {
		if name, _, _ := strings.Cut(line, "{"); strings.HasSuffix(name, "_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// embedcni_server_call_error_total{code="11",verb="ADD"} 1
	// embedcni_server_request_total{code="400",handler="/cni",method="POST"} 1
}
