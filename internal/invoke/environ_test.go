//go:build unix

package invoke

import (
	"context"
	"reflect"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/expect"
)

func TestFault_F23_Environ(t *testing.T) {
	path := "PATH=" + defaultPath
	tests := []struct {
		name             string
		base, allow, cni []string
		want             []string
	}{
		{"nothing", nil, nil, nil, []string{path}},
		{
			"secrets stay",
			[]string{"PATH=/bin", "TOKEN=x", "HOME=/root", "HTTP_PROXY=http://u:p@h", "TZ=UTC"}, DefaultAllow(), nil,
			[]string{"PATH=/bin", "TZ=UTC"},
		},
		{"an empty PATH is none", []string{"PATH="}, nil, nil, []string{path}},
		{"the last one wins", []string{"TZ=a", "PATH=/a", "TZ=b", "PATH=/b"}, []string{"TZ"}, nil, []string{"PATH=/b", "TZ=b"}},
		{
			"a prefix",
			[]string{"PATH=/bin", "FOO_A=1", "FOO_B=2", "FO=3", "XFOO_=4"}, []string{"FOO_*"}, nil,
			[]string{"FOO_A=1", "FOO_B=2", "PATH=/bin"},
		},
		{"a name is no prefix", []string{"PATH=/bin", "TZDIR=/x"}, []string{"TZ"}, nil, []string{"PATH=/bin"}},
		{"empty allows nothing", []string{"PATH=/bin", "=x", "NAME", "A=1"}, []string{""}, nil, []string{"PATH=/bin"}},
		{
			"another request's variables",
			[]string{"PATH=/bin", "CNI_COMMAND=DEL", "CNI_ARGS=IP=10.0.0.9", "CNI_NETNS_OVERRIDE=1"}, []string{"*"},
			[]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c"},
			[]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS_OVERRIDE=1", "PATH=/bin"},
		},
		{
			"libcni's environment is the runtime's and more",
			nil, nil,
			[]string{"TOKEN=x", "CNI_COMMAND=DEL", "CNI_TOKEN=x", "PATH=/tmp", "CNI_COMMAND=ADD", "CNI_NETNS=/n", "CNI_IFNAME=eth0", "CNI_ARGS=", "CNI_PATH=/opt/cni/bin"},
			[]string{"CNI_ARGS=", "CNI_COMMAND=ADD", "CNI_IFNAME=eth0", "CNI_NETNS=/n", "CNI_PATH=/opt/cni/bin", path},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Environ(tt.base, tt.allow, tt.cni); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestTraceEnv(t *testing.T) {
	state, err := trace.ParseTraceState("vendor=1")
	expect.NoError(t, err)
	member, err := baggage.NewMember("tenant", "blue")
	expect.NoError(t, err)
	bag, err := baggage.New(member)
	expect.NoError(t, err)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	traced := trace.ContextWithSpanContext(context.Background(), span)
	const parent = "TRACEPARENT=00-01000000000000000000000000000000-0200000000000000-01"
	tests := []struct {
		name string
		ctx  context.Context
		want []string
	}{
		{"no span", context.Background(), nil},
		{"baggage alone", baggage.ContextWithBaggage(context.Background(), bag), nil},
		{"a span", traced, []string{parent}},
		{
			"everything",
			baggage.ContextWithBaggage(trace.ContextWithSpanContext(context.Background(), span.WithTraceState(state)), bag),
			[]string{parent, "TRACESTATE=vendor=1", "BAGGAGE=tenant=blue"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := TraceEnv(tt.ctx); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}
