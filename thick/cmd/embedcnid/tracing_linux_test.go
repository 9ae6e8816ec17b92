package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/embedcni/cni/internal/expect"
)

// collector takes spans as an OpenTelemetry collector does.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	asked int
	spans []*tracepb.Span
	of    []string // attributes of their resource
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked++
		var data tracepb.TracesData
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &data)
		}
		if got := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("Tenant"); err != nil || got != "POST /v1/traces application/x-protobuf blue sky" {
			t.Errorf("the collector was asked: %s (%v)", got, err)
		}
		for _, resource := range data.ResourceSpans {
			c.of = attributes(resource.Resource.Attributes)
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// startTraced starts a daemon that sends its spans to the collector, with the environment that
// docs/operating.md shows, but for each call.
func (s *site) startTraced(c *collector, more ...string) *process {
	s.t.Helper()
	cmd := s.command()
	shown := strings.Replace(block(s.t, "ini", "OTEL_"), "http://127.0.0.1:4318", c.URL, 1)
	cmd.Env = append(append(cmd.Env, strings.Fields(shown)...), "OTEL_EXPORTER_OTLP_HEADERS=tenant=blue%20sky", "OTEL_TRACES_SAMPLER_ARG=1")
	cmd.Env = append(cmd.Env, more...)
	return s.startAs(cmd)
}

// attributes renders attributes. Those that differ from run to run have no value.
func attributes(all []*commonpb.KeyValue) (lines []string) {
	for _, a := range all {
		text := a.Value.String()
		if _, value, ok := strings.Cut(text, ":"); ok {
			text = strings.Trim(value, `"`)
		}
		if slices.Contains([]string{"cni.queued_seconds", "cni.path", "host.name", "service.version", "telemetry.sdk.version"}, a.Key) {
			text = ""
		}
		lines = append(lines, a.Key+"="+text)
	}
	slices.Sort(lines)
	return lines
}

// tree renders the spans below a parent, a line for each, in the order of their beginnings.
func (c *collector) tree(parent, indent string) (text string) {
	slices.SortStableFunc(c.spans, func(a, b *tracepb.Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	for _, s := range c.spans {
		if fmt.Sprintf("%x", s.ParentSpanId) != parent {
			continue
		}
		text += indent + s.Name
		if s.Kind != tracepb.Span_SPAN_KIND_INTERNAL {
			text += " " + s.Kind.String()
		}
		for _, a := range attributes(s.Attributes) {
			text += " " + a
		}
		if s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
			text += fmt.Sprintf(" error %q", s.Status.Message)
		}
		text += "\n" + c.tree(fmt.Sprintf("%x", s.SpanId), indent+"    ")
	}
	return text
}

// Identifiers of a trace that a runtime has begun, and of its span.
const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	parentID = "b7ad6b7169203331"
)

// TestTheTraceOfACall: the runtime's span is the parent of the daemon's, and that of one for each
// network and plugin, through the shim.
func TestTheTraceOfACall(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	plugin := "#!/bin/sh\n[ \"$CNI_COMMAND\" != ADD ] || { printf %s \"$TRACEPARENT\" >" + s.path("told") + "; echo '{\"code\": 104, \"msg\": \"no cable\"}'; exit 1; }\n"
	expect.NoError(t, os.WriteFile(filepath.Join(s.PluginDir, "full"), []byte(plugin), 0o755))
	s.WriteConf("30-full.conflist", `{"cniVersion": "1.0.0", "name": "full", "plugins": [{"type": "full"}]}`)
	c := newCollector(t)
	p := s.startTraced(c)
	status := func() error { return s.cni.GetStatusNetworkList(ctx, s.list()) }
	untraced, web, fails := s.container("untraced", ""), s.container("web", ""), s.container("fails", "full")
	web.Args = append(web.Args, [2]string{"K8S_POD_NAMESPACE", "shop"}, [2]string{"K8S_POD_NAME", "web-0"}, [2]string{"K8S_POD_UID", "1234"},
		[2]string{"K8S_POD_INFRA_CONTAINER_ID", "web"})
	t.Setenv("TRACEPARENT", "00-"+traceID+"-"+parentID+"-00") // not sampled
	expect.Value(s.add(ctx, untraced))(t)
	expect.NoError(t, s.del(ctx, untraced))
	t.Setenv("TRACEPARENT", "00-"+traceID+"-"+parentID+"-01")
	t.Setenv("BAGGAGE", "long="+strings.Repeat("b", 4<<10-len("long="))) // as long as the shim passes on
	expect.Value(s.add(ctx, web))(t)
	_, err := s.add(ctx, fails)
	expect.Fails(t, "an ADD whose plugin fails", err)
	p.find("call refused", `"trace_id":"`+traceID+`"`)
	expect.NoError(t, os.Unsetenv("TRACEPARENT"), status(), s.del(ctx, web)) // Setenv restores it
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)

	expect.Same(t, "resource", c.of, []string{"host.name=", "k8s.node.name=node-1", "service.name=embedcnid", "service.version=",
		"telemetry.sdk.language=go", "telemetry.sdk.name=opentelemetry", "telemetry.sdk.version="})
	expect.Same(t, "below the runtime's span", c.tree(parentID, ""), wantAdds)
	expect.Same(t, "begun here", c.tree("", ""), wantDel)
	told, at := string(expect.Value(os.ReadFile(s.path("told")))(t)), 0
	for _, span := range c.spans {
		if slices.Contains(attributes(span.Attributes), "cni.plugin.code=104") {
			expect.Same(t, "the plugin's parent", told, fmt.Sprintf("00-%s-%x-01", traceID, span.SpanId))
			expect.Same(t, "trace", fmt.Sprintf("%x", span.TraceId), traceID)
			at++
		}
	}
	expect.Same(t, "spans of the plugin", at, 1)
}

// wantAdds are an ADD on a network with two plugins, and one whose second network fails. wantDel
// is a DEL that its runtime does not trace; a STATUS begins no trace.
const (
	wantAdds = `cni.ADD SPAN_KIND_SERVER cni.id=web cni.ifname=eth0 cni.name=node cni.queued_seconds= http.request.method=POST http.response.status_code=200 http.route=/cni k8s.namespace.name=shop k8s.pod.name=web-0 k8s.pod.uid=1234
    cni.SetupSerially cni.id=web cni.path=
        cni.attachNetworksSerially cni.ifname=eth0 cni.name=podnet
            cni.plugin cni.plugin.kind=built in cni.plugin.type=bridge cni.plugin.verb=ADD
                cni.plugin cni.plugin.kind=built in cni.plugin.type=host-local cni.plugin.verb=ADD
            cni.plugin cni.plugin.kind=built in cni.plugin.type=portmap cni.plugin.verb=ADD
cni.ADD SPAN_KIND_SERVER cni.code=104 cni.id=fails cni.ifname=eth0 cni.name=node cni.queued_seconds= error.type=104 http.request.method=POST http.response.status_code=400 http.route=/cni error "no cable; ` + noCable + `"
    cni.SetupSerially cni.id=fails cni.path=
        cni.attachNetworksSerially cni.ifname=eth0 cni.name=podnet
            cni.plugin cni.plugin.kind=built in cni.plugin.type=bridge cni.plugin.verb=ADD
                cni.plugin cni.plugin.kind=built in cni.plugin.type=host-local cni.plugin.verb=ADD
            cni.plugin cni.plugin.kind=built in cni.plugin.type=portmap cni.plugin.verb=ADD
        cni.attachNetworksSerially cni.ifname=net1 cni.name=full error "` + noCable + `"
            cni.plugin cni.plugin.code=104 cni.plugin.kind=executable cni.plugin.type=full cni.plugin.verb=ADD error "` + noCable + `"
        cni.detachNetwork cni.ifname=net1 cni.name=full
            cni.plugin cni.plugin.kind=executable cni.plugin.type=full cni.plugin.verb=DEL
        cni.detachNetwork cni.ifname=eth0 cni.name=podnet
            cni.plugin cni.plugin.kind=built in cni.plugin.type=portmap cni.plugin.verb=DEL
            cni.plugin cni.plugin.kind=built in cni.plugin.type=bridge cni.plugin.verb=DEL
                cni.plugin cni.plugin.kind=built in cni.plugin.type=host-local cni.plugin.verb=DEL
`
	noCable = `add network \"full\" of container fails, interface net1: plugin type=\"full\" failed (add): no cable (code 104)`
	wantDel = `cni.DEL SPAN_KIND_SERVER cni.id=web cni.ifname=eth0 cni.name=node cni.queued_seconds= http.request.method=POST http.response.status_code=200 http.route=/cni k8s.namespace.name=shop k8s.pod.name=web-0 k8s.pod.uid=1234
    cni.Remove cni.id=web cni.path=
        cni.detachNetwork cni.ifname=eth0 cni.name=podnet
            cni.plugin cni.plugin.kind=built in cni.plugin.type=portmap cni.plugin.verb=DEL
            cni.plugin cni.plugin.kind=built in cni.plugin.type=bridge cni.plugin.verb=DEL
                cni.plugin cni.plugin.kind=built in cni.plugin.type=host-local cni.plugin.verb=DEL
`
)

// TestTracesThatAreNotSent: a sampler that wants none asks no collector, and calls go on while the
// collector is away.
func TestTracesThatAreNotSent(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	c := newCollector(t)
	call := func(id string) {
		t.Helper()
		of := s.container(id, "")
		expect.Value(s.add(ctx, of))(t)
		expect.NoError(t, s.del(ctx, of))
	}
	p := s.startTraced(c, "OTEL_TRACES_SAMPLER=always_off")
	call("unsampled")
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	expect.Same(t, "requests to the collector", c.asked, 0)
	c.Close()
	p = s.startTraced(c, "OTEL_BSP_SCHEDULE_DELAY=10")
	call("lost")
	p.find("traces are not sent", "connection refused")
	call("lost-too")
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)

	cmd := s.command()
	cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317")
	out, err := cmd.CombinedOutput()
	expect.Fails(t, "a daemon with an endpoint that is no URL", err)
	expect.Contains(t, "its error", string(out), `embedcnid: OTEL_EXPORTER_OTLP_ENDPOINT is "collector:4317": want a URL`)
}
