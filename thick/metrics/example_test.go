package metrics_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
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

	dir, err := os.MkdirTemp("", "daemon")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "multus.sock")
	l, err := s.Listen(socket)
	if err != nil {
		log.Fatal(err)
	}
	go s.Serve(l) // until the Shutdown

	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	call(&client, `{
		"env":    {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "web", "CNI_NETNS": "/run/netns/web"},
		"config": {"cniVersion": "1.1.0", "name": "podnet", "type": "shim"}
	}`)
	answer, err := client.Get("http://daemon/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if name, _, _ := strings.Cut(lines.Text(), "{"); strings.HasSuffix(name, "_total") {
			fmt.Println(lines.Text())
		}
	}
	if err := s.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// embedcni_server_call_error_total{code="11",verb="ADD"} 1
	// embedcni_server_request_total{code="400",handler="/cni",method="POST"} 1
}

func call(client *http.Client, body string) {
	answer, err := client.Post("http://daemon/cni", "application/json", strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil {
		log.Fatal(err)
	}
}
