package shim

import (
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheTraceOfTheRuntimeIsPassedOn, in the head of the request.
func TestTheTraceOfTheRuntimeIsPassedOn(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s := newScripted(t, readyAnd(ok(`{"Result": {"cniVersion": "1.1.0"}}`)))
	for _, variables := range [][]string{
		{"TRACEPARENT=" + parent, "TRACESTATE=vendor=1", "BAGGAGE=tenant=blue"},
		{"TRACEPARENT=" + parent + "\r\nX: y", "TRACESTATE=ü", "BAGGAGE=" + strings.Repeat("b", maxTraceField+1), "OTHER=1"},
	} {
		got := run(Options{Socket: s.Socket()}, env("ADD", variables...), conf("1.1.0"))
		expect.Same(t, "exit code", got.code, 0)
	}
	asked := s.Asked("/cni")
	expect.Same(t, "requests", len(asked), 2)
	head := func(i int) string {
		head, _, _ := strings.Cut(string(asked[i].Raw), "\r\n\r\n")
		_, after, _ := strings.Cut(head, "Content-Length: ")
		_, fields, _ := strings.Cut(after, "\r\n")
		lines := strings.Split(fields, "\r\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	expect.Same(t, "head", head(0), "baggage: tenant=blue\ntraceparent: "+parent+"\ntracestate: vendor=1")
	expect.Same(t, "head with values that no field can have", head(1), "")
}
