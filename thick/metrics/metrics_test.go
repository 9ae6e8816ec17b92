package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
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

// compare compares metrics of these names with text in Prometheus' format. Counters that are
// still 0 are left out.
func compare(t testing.TB, registry *prometheus.Registry, want string, names ...string) {
	t.Helper()
	counted := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := registry.Gather()
		for _, family := range all {
			family.Metric = slices.DeleteFunc(family.Metric, func(m *dto.Metric) bool { return m.Counter != nil && m.Counter.GetValue() == 0 })
		}
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
	})
	if err := testutil.GatherAndCompare(counted, strings.NewReader(want), names...); err != nil {
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
	m.Request(server.Observation{Path: "/cni", Method: "POST", Status: 400, Verb: "ADD", Code: 4711, Err: errors.New("a plugin's own code")})
	compare(t, registry, `
# HELP embedcni_server_call_errors_total Failed CNI calls by their CNI error code; 0 is an error without a code.
# TYPE embedcni_server_call_errors_total counter
embedcni_server_call_errors_total{code="0",verb="CHECK"} 1
embedcni_server_call_errors_total{code="11",verb="ADD"} 3
embedcni_server_call_errors_total{code="4",verb="other"} 1
embedcni_server_call_errors_total{code="other",verb="ADD"} 1
# HELP embedcni_server_requests_total Requests by path and HTTP status.
# TYPE embedcni_server_requests_total counter
embedcni_server_requests_total{code="200",handler="/cni",method="POST"} 1
embedcni_server_requests_total{code="200",handler="/healthz",method="GET"} 1
embedcni_server_requests_total{code="200",handler="/readyz",method="POST"} 1
embedcni_server_requests_total{code="400",handler="/cni",method="POST"} 6
embedcni_server_requests_total{code="404",handler="other",method="other"} 2
`, "embedcni_server_call_errors_total", "embedcni_server_requests_total")
	expect.Same(t, "durations", samples(t, registry, "embedcni_server_call_duration_seconds"), 7)
	expect.Same(t, "waits", samples(t, registry, "embedcni_server_queue_duration_seconds"), 7)
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
# HELP embedcni_plugin_errors_total Failed plugin calls.
# TYPE embedcni_plugin_errors_total counter
embedcni_plugin_errors_total{kind="none",plugin="other",verb="ADD"} 1
embedcni_plugin_errors_total{kind="registered",plugin="mark",verb="ADD"} 1
`, "embedcni_plugin_errors_total")
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
	m.Retried(&cni.Report{Removed: []string{"e"}, Failed: map[string]error{"c": errors.New("busy")}, Skipped: map[string]error{"f": errors.New("not yet")}})
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
embedcni_swept_total{what="containers"} 5
embedcni_swept_total{what="leftovers"} 2
embedcni_swept_total{what="repaired parts"} 6
# HELP embedcni_unswept Containers and leftovers that could not or must not be removed.
# TYPE embedcni_unswept gauge
embedcni_unswept{what="failed"} 2
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

func TestAServersStatsAreCollected(t *testing.T) {
	m, registry := registered(t)
	expect.NoError(t, m.Server(func() server.Stats {
		return server.Stats{
			Adds:         server.CallStats{Running: 1, Overtime: 2, Waiting: 3, Slots: 32},
			Dels:         server.CallStats{Running: 4, Overtime: 5, Waiting: 6, Slots: 33},
			Others:       server.CallStats{Running: 7, Overtime: 8, Waiting: 9, Slots: 34},
			RequestBytes: 100, RequestLimit: 1000,
		}
	}))
	compare(t, registry, `
# HELP embedcni_server_calls CNI calls that wait, that run, and that have run for more than five seconds.
# TYPE embedcni_server_calls gauge
embedcni_server_calls{state="overtime",verb="ADD"} 2
embedcni_server_calls{state="overtime",verb="DEL"} 5
embedcni_server_calls{state="overtime",verb="other"} 8
embedcni_server_calls{state="running",verb="ADD"} 1
embedcni_server_calls{state="running",verb="DEL"} 4
embedcni_server_calls{state="running",verb="other"} 7
embedcni_server_calls{state="waiting",verb="ADD"} 3
embedcni_server_calls{state="waiting",verb="DEL"} 6
embedcni_server_calls{state="waiting",verb="other"} 9
# HELP embedcni_server_request_bytes Bytes of the requests that are read, wait or run.
# TYPE embedcni_server_request_bytes gauge
embedcni_server_request_bytes 100
# HELP embedcni_server_request_limit_bytes Bytes that these requests may have.
# TYPE embedcni_server_request_limit_bytes gauge
embedcni_server_request_limit_bytes 1000
# HELP embedcni_server_slots CNI calls that may run at once, but for those that take more than five seconds.
# TYPE embedcni_server_slots gauge
embedcni_server_slots{verb="ADD"} 32
embedcni_server_slots{verb="DEL"} 33
embedcni_server_slots{verb="other"} 34
`, "embedcni_server_calls", "embedcni_server_slots", "embedcni_server_request_bytes", "embedcni_server_request_limit_bytes")
	expect.Fails(t, "a second Server was registered", m.Server(nil))
}

func TestQueuedDelsAndGuardsAreCounted(t *testing.T) {
	m, registry := registered(t)
	for range 2 {
		m.Drained(&server.DrainReport{
			Ended: make([]server.QueuedDel, 3), Dropped: make([]server.QueuedDel, 2), Failed: make([]server.QueuedDel, 1), Unreadable: errors.New("torn"),
		})
	}
	m.Guard(guard.Event{Kind: guard.Repaired})
	compare(t, registry, `
# HELP embedcni_guard_events_total Events of a guard.
# TYPE embedcni_guard_events_total counter
embedcni_guard_events_total{kind="repaired"} 1
# HELP embedcni_server_queued_dels_total DELs that shims had queued, and files of the queue that are unreadable.
# TYPE embedcni_server_queued_dels_total counter
embedcni_server_queued_dels_total{outcome="dropped"} 4
embedcni_server_queued_dels_total{outcome="ended"} 6
embedcni_server_queued_dels_total{outcome="failed"} 2
embedcni_server_queued_dels_total{outcome="unreadable"} 2
`, "embedcni_guard_events_total", "embedcni_server_queued_dels_total")
}

// TestCountersBeginWithZero, where their labels are known beforehand.
func TestCountersBeginWithZero(t *testing.T) {
	_, registry := registered(t)
	for name, want := range map[string]int{
		"embedcni_server_requests_total": 3, "embedcni_server_call_duration_seconds": 5, "embedcni_server_queue_duration_seconds": 5,
		"embedcni_server_call_errors_total": 5 * 14, "embedcni_server_queued_dels_total": 4, "embedcni_swept_total": 3, "embedcni_unswept": 3,
		"embedcni_guard_events_total": 8,
	} {
		expect.Same(t, name, expect.Value(testutil.GatherAndCount(registry, name))(t), want)
	}
}

// TestTheCommentListsTheMetrics, with their labels.
func TestTheCommentListsTheMetrics(t *testing.T) {
	m, registry := registered(t)
	expect.NoError(t, m.Server(func() server.Stats { return server.Stats{} }), m.Attachments(func(...string) ([]cni.Attachment, error) { return nil, nil }))
	m.Plugin(t.Context(), cni.Event{})
	m.Plugin(t.Context(), cni.Event{Err: errors.New("x")})
	m.Health(nil)
	labels := func(m *dto.Metric) (names []string) {
		for _, l := range m.Label {
			names = append(names, l.GetName())
		}
		slices.Sort(names)
		return names
	}
	var registered, listed []string
	for _, family := range expect.Value(registry.Gather())(t) {
		registered = append(registered, family.GetName()+fmt.Sprint(labels(family.Metric[0])))
	}
	source := string(expect.Value(os.ReadFile("metrics.go"))(t))
	for _, line := range regexp.MustCompile(`(?m)^//\t(embedcni_\w+)(?:{(\S+)})?  `).FindAllStringSubmatch(source, -1) {
		names := strings.FieldsFunc(line[2], func(r rune) bool { return r == ',' })
		slices.Sort(names)
		listed = append(listed, line[1]+fmt.Sprint(names))
	}
	slices.Sort(listed)
	expect.Same(t, "listed", listed, registered)
}
