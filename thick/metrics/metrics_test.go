package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/metrics"
	"github.com/embedcni/cni/thick/server"
)

// The methods fit a Runtime.
var _ = func(m *metrics.Metrics, rt *cni.Runtime) (cni.Opt, error) {
	return cni.WithObserver(m.Plugin), m.Attachments(rt.Attachments)
}

func registered(t testing.TB) (*metrics.Metrics, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m := expect.Value(metrics.New(registry))(t)
	return m, registry
}

// compare compares metrics of these names with text in Prometheus' format.
func compare(t testing.TB, registry *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// full is a Backend without a free address.
type full struct{}

func (full) Add(context.Context, *server.Request) (types.Result, error) {
	return nil, types.NewError(types.ErrTryAgainLater, "no more addresses", "")
}
func (full) Del(context.Context, *server.Request) error    { return nil }
func (full) Check(context.Context, *server.Request) error  { return errors.New("unclear") }
func (full) GC(context.Context, *server.Request) error     { return nil }
func (full) Status(context.Context, *server.Request) error { return nil }

func TestRequestsOfAServerAreCounted(t *testing.T) {
	m, registry := registered(t)
	s := expect.Value(server.New(full{}, server.Options{Observe: m.Request}))(t)
	ask := func(method, path, verb string) {
		body := fmt.Sprintf(`{"env":{"CNI_COMMAND":%q,"CNI_CONTAINERID":"c1","CNI_NETNS":"/n"},"config":{"cniVersion":"1.0.0","name":"n"}}`, verb)
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body)))
	}
	for range 3 {
		ask(http.MethodPost, "/cni", "ADD")
	}
	ask(http.MethodPost, "/cni", "DEL")
	ask(http.MethodPost, "/cni", "CHECK")
	ask(http.MethodPost, "/cni", "one of many")
	ask(http.MethodGet, "/healthz", "")
	ask(http.MethodPost, "/readyz", "")
	ask("PROPFIND", "/secret/1", "")
	ask("PROPFIND", "/secret/2", "")
	compare(t, registry, `
# HELP embedcni_server_call_error_total Failed CNI calls by their CNI error code; 0 is an error without a code.
# TYPE embedcni_server_call_error_total counter
embedcni_server_call_error_total{code="0",verb="CHECK"} 1
embedcni_server_call_error_total{code="11",verb="ADD"} 3
embedcni_server_call_error_total{code="4",verb="other"} 1
# HELP embedcni_server_request_total Requests by path and HTTP status.
# TYPE embedcni_server_request_total counter
embedcni_server_request_total{code="200",handler="/cni",method="POST"} 1
embedcni_server_request_total{code="200",handler="/healthz",method="GET"} 1
embedcni_server_request_total{code="200",handler="/readyz",method="POST"} 1
embedcni_server_request_total{code="400",handler="/cni",method="POST"} 5
embedcni_server_request_total{code="404",handler="other",method="other"} 2
`, "embedcni_server_call_error_total", "embedcni_server_request_total")
	expect.Same(t, "durations", samples(t, registry, "embedcni_server_call_duration_seconds"), 6)
	expect.Same(t, "waits", samples(t, registry, "embedcni_server_queue_duration_seconds"), 6)
	for _, p := range expect.Value(testutil.GatherAndLint(registry))(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// samples adds up how many samples the histograms of a name have.
func samples(t *testing.T, registry *prometheus.Registry, name string) (n uint64) {
	t.Helper()
	for _, family := range expect.Value(registry.Gather())(t) {
		for _, metric := range family.Metric {
			if family.GetName() == name {
				n += metric.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

func TestPluginsAreCounted(t *testing.T) {
	m, registry := registered(t)
	ctx := context.Background()
	m.Plugin(ctx, cni.Event{Operation: "ADD", Plugin: "mark", PluginKind: "registered", Duration: time.Second})
	m.Plugin(ctx, cni.Event{Operation: "ADD", Plugin: "mark", PluginKind: "registered", Err: errors.New("x")})
	m.Plugin(ctx, cni.Event{Operation: "ADD", Plugin: "no such plugin", Err: cni.ErrPluginNotFound})
	compare(t, registry, `
# HELP embedcni_plugin_error_total Failed plugin calls.
# TYPE embedcni_plugin_error_total counter
embedcni_plugin_error_total{kind="none",plugin="other",verb="ADD"} 1
embedcni_plugin_error_total{kind="registered",plugin="mark",verb="ADD"} 1
`, "embedcni_plugin_error_total")
	expect.Same(t, "durations", samples(t, registry, "embedcni_plugin_duration_seconds"), 3)
}

func TestVerdictsAndReports(t *testing.T) {
	m, registry := registered(t)
	m.Health([]cni.Health{{State: cni.StateHealthy}, {State: cni.StateBroken}, {State: cni.StateHealthy}})
	m.Health([]cni.Health{{State: cni.StateHealthy}, {State: cni.StateGone}})
	for range 2 {
		m.Report(&cni.Report{
			Removed: []string{"a", "b"}, Reclaimed: []string{"x"}, Left: []string{"y"},
			Failed:   map[string]error{"c": errors.New("busy")},
			Repaired: map[string][]cni.Difference{"d": {{}, {}, {}}},
		})
	}
	compare(t, registry, `
# HELP embedcni_containers Containers by the verdict of the last Health.
# TYPE embedcni_containers gauge
embedcni_containers{verdict="broken"} 0
embedcni_containers{verdict="elsewhere"} 0
embedcni_containers{verdict="gone"} 1
embedcni_containers{verdict="healthy"} 1
embedcni_containers{verdict="not attached"} 0
embedcni_containers{verdict="unknown"} 0
# HELP embedcni_swept_total Containers and leftovers that Recover and GC removed, and parts that Recover made again.
# TYPE embedcni_swept_total counter
embedcni_swept_total{what="containers"} 4
embedcni_swept_total{what="leftovers"} 2
embedcni_swept_total{what="repaired parts"} 6
# HELP embedcni_unswept Containers and leftovers that the last Recover or GC could not or must not remove.
# TYPE embedcni_unswept gauge
embedcni_unswept{what="failed"} 1
embedcni_unswept{what="leftovers"} 1
embedcni_unswept{what="skipped"} 0
`, "embedcni_containers", "embedcni_swept_total", "embedcni_unswept")
}

func TestAttachmentsAreCountedAtEachCollection(t *testing.T) {
	m, registry := registered(t)
	var all []cni.Attachment
	var fail error
	expect.NoError(t, m.Attachments(func(...string) ([]cni.Attachment, error) { return all, fail }))
	number := func(attached, failed, containers int) string {
		return fmt.Sprintf(`
# HELP embedcni_attached_containers Containers with at least one interface that is attached.
# TYPE embedcni_attached_containers gauge
embedcni_attached_containers %d
# HELP embedcni_attachments Interfaces on record by state.
# TYPE embedcni_attachments gauge
embedcni_attachments{state="attached"} %d
embedcni_attachments{state="attaching"} 0
embedcni_attachments{state="detaching"} 0
embedcni_attachments{state="failed"} %d
embedcni_attachments{state="unknown"} 0
`, containers, attached, failed)
	}
	names := []string{"embedcni_attachments", "embedcni_attached_containers"}
	compare(t, registry, number(0, 0, 0), names...)
	all = []cni.Attachment{
		{ContainerID: "a", State: cni.Attached}, {ContainerID: "a", State: cni.Attached}, {ContainerID: "b", State: cni.Attached},
		{ContainerID: "c", State: cni.Failed},
	}
	compare(t, registry, number(3, 1, 2), names...)
	fail = errors.New("the state directory is gone")
	expect.Says(t, "the collection reports", expect.Err(registry.Gather()), fail.Error())
	if err := m.Attachments(nil); err == nil {
		t.Error("a second Runtime was registered")
	}
	if _, err := metrics.New(registry); err == nil {
		t.Error("the metrics were registered twice")
	}
}
