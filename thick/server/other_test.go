package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// TestOtherPathsAreServed: the server's own stay its own, and each answer is observed once.
func TestOtherPathsAreServed(t *testing.T) {
	var seen []server.Observation
	other := http.NewServeMux()
	other.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") })
	other.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	other.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(http.StatusOK) // superfluous
		expect.NoError(t, http.NewResponseController(w).Flush())
	})
	other.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		w.WriteHeader(http.StatusTeapot) // too late
	})
	other.HandleFunc("/fails", func(w http.ResponseWriter, _ *http.Request) {
		expect.Is(t, http.NewResponseController(w).Flush(), io.ErrClosedPipe)
	})
	other.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	for _, own := range []string{"/cni", "/healthz", "/readyz"} {
		other.HandleFunc(own, func(http.ResponseWriter, *http.Request) { t.Errorf("%s was not the server's", own) })
	}
	b := &backend{}
	s := newServer(t, b, server.Options{Other: other, Observe: func(o server.Observation) { seen = append(seen, o) }})
	get := func(path string) (w *httptest.ResponseRecorder) {
		defer func() { _ = recover() }()
		w = httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, strings.NewReader("")))
		return w
	}
	for _, tt := range []struct {
		path   string
		status int
	}{
		{"/metrics", 200}, {"/empty", 200}, {"/early", 418}, {"/stream", 200}, {"/none", 404}, {"/panic", 500},
		{"/cni", 405}, {"/healthz", 200}, {"/readyz", 200},
	} {
		seen = nil
		w := get(tt.path)
		if len(seen) != 1 || seen[0].Status != tt.status || seen[0].Method != "GET" || seen[0].Duration <= 0 {
			t.Errorf("%s: observed %+v, want status %d once", tt.path, seen, tt.status)
		}
		if tt.path == "/stream" && !w.Flushed {
			t.Error("Flush does not reach the connection")
		}
		if tt.path == "/metrics" {
			expect.Same(t, "body", w.Body.String(), "up 1\n")
		}
	}
	seen = nil
	s.ServeHTTP(gone{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/fails", strings.NewReader("")))
	expect.Same(t, "calls", len(seen), 1)
	success(t, post(s, "/cni", request("ADD", "c1")), answered)
}

// gone is the connection of a client that has gone.
type gone struct{ *httptest.ResponseRecorder }

func (gone) FlushError() error { return io.ErrClosedPipe }
