package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
)

// TestSpansCostLittle without a provider and a client's trace.
func TestSpansCostLittle(t *testing.T) {
	r, o := httptest.NewRequest(http.MethodPost, wire.PathCNI, nil), &Observation{}
	for verb, most := range map[string]float64{wire.Add: 8, wire.Status: 2} {
		got := testing.AllocsPerRun(100, func() {
			_, span := startSpan(r, verb)
			endSpan(span, o, nil)
		})
		expect.That(t, got <= most, "%s: %v allocations, at most %v", verb, got, most)
	}
}

func BenchmarkSpanWithoutProvider(b *testing.B) {
	r, o := httptest.NewRequest(http.MethodPost, wire.PathCNI, nil), &Observation{}
	for b.Loop() {
		_, span := startSpan(r, wire.Add)
		endSpan(span, o, nil)
	}
}
