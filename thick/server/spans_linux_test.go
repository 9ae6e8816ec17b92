package server_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

// TestTheClientsTraceReachesTheBackend, also without a provider of spans, and through the queue.
func TestTheClientsTraceReachesTheBackend(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var got []string
	l, q := newLedger(), newQueue(t)
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		of := trace.SpanContextFromContext(ctx)
		got = append(got, verb+" "+of.TraceID().String()+" "+of.SpanID().String()+" "+of.TraceState().String()+" "+baggage.FromContext(ctx).String())
		return addressed("10.1.0.7/16"), l.Keep(verb, r)
	}
	s := newServer(t, l, server.Options{})
	for _, header := range []map[string]string{
		{"traceparent": parent, "tracestate": "vendor=1", "baggage": "tenant=blue"}, {"traceparent": "00-0-0-0"}, nil,
	} {
		r := httptest.NewRequest(http.MethodPost, "/cni", bytes.NewReader(request("ADD", "c1")))
		for name, value := range header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		success(t, w, answered)
	}
	q.put(t, "c1", func(e *delqueue.Entry) { e.Trace = map[string]string{"traceparent": parent, "baggage": "tenant=red"} })
	wantDrained(t, drain(t, s, q), []string{"c1"}, nil, nil)
	const none = "ADD 00000000000000000000000000000000 0000000000000000  "
	expect.Same(t, "traces", got, []string{"ADD 0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 vendor=1 tenant=blue", none, none,
		"DEL 0af7651916cd43dd8448eb211c80319c b7ad6b7169203331  tenant=red"})
}
