// Package metrics counts, for Prometheus, what a daemon does for its clients and what its
// Runtime does with containers. It is a module of its own, so that the library's importers
// do not require Prometheus' client.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	rt, err := cni.New(cni.WithObserver(m.Plugin))
//	err = m.Attachments(rt.Attachments)
//	s, err := server.New(backend, server.Options{Observe: m.Request})
//	err = m.Server(s.Stats)
//	mux := http.NewServeMux()
//	mux.Handle("/metrics", promhttp.Handler())
//	scraped := &http.Server{Addr: "localhost:9100", Handler: mux, ReadHeaderTimeout: time.Second}
//	go func() { log.Print(scraped.ListenAndServe()) }()
//
// The metrics:
//
//	embedcni_server_requests_total{handler,code,method}     requests by path and HTTP status,
//	                                                        as multus_server_request_total
//	embedcni_server_call_duration_seconds{verb}             from the request to its answer
//	embedcni_server_queue_duration_seconds{verb}            of that, waiting for other calls
//	embedcni_server_call_errors_total{verb,code}            failed calls by their CNI error code
//	embedcni_server_calls{verb,state}                       calls that wait, run, or take long
//	embedcni_server_slots{verb}                             how many may run at once
//	embedcni_server_request_bytes                           of the requests in hand
//	embedcni_server_request_limit_bytes                     how many there may be
//	embedcni_server_queued_dels_total{outcome}              DELs that shims had queued
//	embedcni_plugin_duration_seconds{plugin,kind,verb}      calls of plugins
//	embedcni_plugin_errors_total{plugin,kind,verb}          those of them that failed
//	embedcni_attachments{state}                             interfaces on record
//	embedcni_attached_containers                            containers with interfaces that are attached
//	embedcni_containers{verdict}                            containers by the last Health
//	embedcni_swept_total{what}                              removed by Recover and GC
//	embedcni_unswept{what}                                  leftovers that the last of them could not remove
//	embedcni_guard_events_total{kind}                       what a guard repaired, or left
//
// No label has the name of a container, network or interface: their number has no bound. Counters
// whose labels are known beforehand begin with 0, so that Prometheus sees the first increase.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/thick/server"
)

// Metrics are the metrics of one daemon. Use New to create them. The methods are safe for
// concurrent use.
type Metrics struct {
	registerer prometheus.Registerer

	requests   *prometheus.CounterVec
	calls      *prometheus.HistogramVec
	queued     *prometheus.HistogramVec
	callErrors *prometheus.CounterVec
	queuedDels *prometheus.CounterVec

	plugins      *prometheus.HistogramVec
	pluginErrors *prometheus.CounterVec

	containers *prometheus.GaugeVec
	swept      *prometheus.CounterVec
	unswept    *prometheus.GaugeVec
	guard      *prometheus.CounterVec
}

// seconds are the bounds of the histograms: an ADD takes some milliseconds in process, some
// tens with executables, and its deadline is minutes.
func seconds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240}
}

// New returns metrics that are registered. It is an error if one of their names is taken.
func New(registerer prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "embedcni", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "embedcni", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "embedcni", Name: name, Help: help, Buckets: seconds()}, labels)
	}
	m := &Metrics{
		registerer:   registerer,
		requests:     counter("server_requests_total", "Requests by path and HTTP status.", "handler", "code", "method"),
		calls:        histogram("server_call_duration_seconds", "Time from the request of a CNI call to its answer.", "verb"),
		queued:       histogram("server_queue_duration_seconds", "Time that a CNI call waited for other calls, or for a readiness file.", "verb"),
		callErrors:   counter("server_call_errors_total", "Failed CNI calls by their CNI error code; 0 is an error without a code.", "verb", "code"),
		queuedDels:   counter("server_queued_dels_total", "DELs that shims had queued, and files of the queue that are unreadable.", "outcome"),
		plugins:      histogram("plugin_duration_seconds", "Time of plugin calls.", "plugin", "kind", "verb"),
		pluginErrors: counter("plugin_errors_total", "Failed plugin calls.", "plugin", "kind", "verb"),
		containers:   gauge("containers", "Containers by the verdict of the last Health.", "verdict"),
		swept:        counter("swept_total", "Containers and leftovers that Recover and GC removed, and parts that Recover made again.", "what"),
		unswept:      gauge("unswept", "Containers and leftovers that could not or must not be removed.", "what"),
		guard:        counter("guard_events_total", "Events of a guard.", "kind"),
	}
	m.begin()
	var errs []error
	for _, c := range []prometheus.Collector{
		m.requests, m.calls, m.queued, m.callErrors, m.queuedDels, m.plugins, m.pluginErrors, m.containers, m.swept, m.unswept, m.guard,
	} {
		errs = append(errs, registerer.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// begin makes the counters whose labels are known. Without that, Prometheus would not take a
// counter's first value for an increase.
func (m *Metrics) begin() {
	for _, status := range []int{http.StatusOK, http.StatusBadRequest, http.StatusServiceUnavailable} {
		m.requests.WithLabelValues("/cni", strconv.Itoa(status), http.MethodPost)
	}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		m.calls.WithLabelValues(verb)
		m.queued.WithLabelValues(verb)
		for _, code := range []uint{
			types.ErrUnknown, types.ErrIncompatibleCNIVersion, types.ErrUnsupportedField, types.ErrUnknownContainer,
			types.ErrInvalidEnvironmentVariables, types.ErrIOFailure, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig,
			types.ErrInvalidNetNS, types.ErrTryAgainLater, notAvailable, limited, plugins, types.ErrInternal,
		} {
			m.callErrors.WithLabelValues(verb, label(code))
		}
	}
	for _, outcome := range []string{"ended", "dropped", "failed", "unreadable"} {
		m.queuedDels.WithLabelValues(outcome)
	}
	for _, kind := range []guard.Kind{guard.Begun, guard.Looked, guard.Repaired, guard.Contested, guard.Held, guard.Left, guard.Unguarded, guard.Failed} {
		m.guard.WithLabelValues(string(kind))
	}
	m.Report(&cni.Report{})
}

// Codes of the CNI specification 1.1.0, sections 2 and 5: no container can be attached, or only
// with limited connectivity.
const (
	notAvailable = 50
	limited      = 51
	plugins      = 100 // the first of those that plugins choose
)

// label returns the label of a CNI error code. Those that plugins choose have no
// bound.
func label(code uint) string {
	if code >= plugins && code != types.ErrInternal {
		return "other"
	}
	return strconv.FormatUint(uint64(code), 10)
}

// Request counts a request: server.Options.Observe.
func (m *Metrics) Request(o server.Observation) {
	m.requests.WithLabelValues(orOther(o.Path), strconv.Itoa(o.Status), orOther(o.Method)).Inc()
	switch o.Path {
	case "", "/healthz", "/readyz":
		return
	}
	verb := orOther(o.Verb)
	m.calls.WithLabelValues(verb).Observe(o.Duration.Seconds())
	m.queued.WithLabelValues(verb).Observe(o.Queued.Seconds())
	if o.Err != nil {
		m.callErrors.WithLabelValues(verb, label(o.Code)).Inc()
	}
}

// Drained counts the DELs of a Server's Drain.
func (m *Metrics) Drained(r *server.DrainReport) {
	for outcome, n := range map[string]int{"ended": len(r.Ended), "dropped": len(r.Dropped), "failed": len(r.Failed)} {
		m.queuedDels.WithLabelValues(outcome).Add(float64(n))
	}
	if r.Unreadable != nil {
		m.queuedDels.WithLabelValues("unreadable").Inc()
	}
}

// Guard counts an event of a guard: guard.Options.Report.
func (m *Metrics) Guard(e guard.Event) { m.guard.WithLabelValues(string(e.Kind)).Inc() }

// orOther names what a server.Observation leaves empty, because it has no bound.
func orOther(label string) string {
	if label == "" {
		return "other"
	}
	return label
}

// Plugin counts a call of a plugin: cni.WithObserver. The type of a plugin that does not
// exist is "other": clients may ask for any.
func (m *Metrics) Plugin(_ context.Context, e cni.Event) {
	plugin, kind := e.Plugin, e.PluginKind
	if kind == "" {
		plugin, kind = "other", "none"
	}
	m.plugins.WithLabelValues(plugin, kind, e.Operation).Observe(e.Duration.Seconds())
	failed := m.pluginErrors.WithLabelValues(plugin, kind, e.Operation) // it is there before the first failure
	if e.Err != nil {
		failed.Inc()
	}
}

// Health notes the verdicts on containers: of a Runtime's Health over all of them. Those of
// the Health before are forgotten.
func (m *Metrics) Health(all []cni.Health) {
	verdicts := map[cni.HealthState]int{
		cni.StateHealthy: 0, cni.StateBroken: 0, cni.StateUnknown: 0, cni.StateGone: 0, cni.StateNotAttached: 0, cni.StateElsewhere: 0,
	}
	for _, c := range all {
		verdicts[c.State]++
	}
	for verdict, n := range verdicts {
		m.containers.WithLabelValues(string(verdict)).Set(float64(n))
	}
}

// Report counts the objects that a Recover or GC has removed and made again, and sets the
// number of those that it could not remove.
func (m *Metrics) Report(r *cni.Report) {
	repaired := 0
	for _, parts := range r.Repaired {
		repaired += len(parts)
	}
	for what, n := range map[string]int{"containers": len(r.Removed), "leftovers": len(r.Reclaimed), "repaired parts": repaired} {
		m.swept.WithLabelValues(what).Add(float64(n))
	}
	for what, n := range map[string]int{"failed": len(r.Failed), "skipped": len(r.Skipped), "leftovers": len(r.Left)} {
		m.unswept.WithLabelValues(what).Set(float64(n))
	}
}

// Retried notes a RetryRemovals: which of the containers that could not be removed are left.
func (m *Metrics) Retried(r *cni.Report) {
	m.swept.WithLabelValues("containers").Add(float64(len(r.Removed)))
	m.unswept.WithLabelValues("failed").Set(float64(len(r.Failed) + len(r.Skipped)))
}

// Attachments registers the numbers of interfaces on record, and of containers with such
// that are attached. They are counted at each collection. list is a Runtime's Attachments.
// If it fails, the collection reports the error.
func (m *Metrics) Attachments(list func(...string) ([]cni.Attachment, error)) error {
	number := prometheus.NewDesc("embedcni_attachments", "Interfaces on record by state.", []string{"state"}, nil)
	attached := prometheus.NewDesc("embedcni_attached_containers", "Containers with at least one interface that is attached.", nil, nil)
	return m.register([]*prometheus.Desc{number, attached}, func(to chan<- prometheus.Metric) {
		all, err := list()
		if err != nil {
			to <- prometheus.NewInvalidMetric(number, err)
			return
		}
		states := map[cni.AttachmentState]int{
			cni.Attaching: 0, cni.Attached: 0, cni.Detaching: 0, cni.Failed: 0, cni.Unknown: 0,
		}
		containers := map[string]bool{}
		for _, one := range all {
			states[one.State]++
			if one.State == cni.Attached {
				containers[one.ContainerID] = true
			}
		}
		for state, n := range states {
			to <- value(number, n, string(state))
		}
		to <- value(attached, len(containers))
	})
}

// Server registers the numbers of calls and bytes that a Server has in hand. stats is its Stats.
func (m *Metrics) Server(stats func() server.Stats) error {
	calls := prometheus.NewDesc("embedcni_server_calls", "CNI calls that wait, that run, and that have run for more than five seconds.", []string{"verb", "state"}, nil)
	slots := prometheus.NewDesc("embedcni_server_slots", "CNI calls that may run at once, but for those that take more than five seconds.", []string{"verb"}, nil)
	held := prometheus.NewDesc("embedcni_server_request_bytes", "Bytes of the requests that are read, wait or run.", nil, nil)
	limit := prometheus.NewDesc("embedcni_server_request_limit_bytes", "Bytes that these requests may have.", nil, nil)
	return m.register([]*prometheus.Desc{calls, slots, held, limit}, func(to chan<- prometheus.Metric) {
		all := stats()
		for verb, of := range map[string]server.CallStats{"ADD": all.Adds, "DEL": all.Dels, "other": all.Others} {
			for state, n := range map[string]int64{"waiting": of.Waiting, "running": of.Running, "overtime": of.Overtime} {
				to <- value(calls, n, verb, state)
			}
			to <- value(slots, of.Slots, verb)
		}
		to <- value(held, all.RequestBytes)
		to <- value(limit, all.RequestLimit)
	})
}

func value[N int | int64](d *prometheus.Desc, n N, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
}

// register registers metrics whose values are found at each collection.
func (m *Metrics) register(all []*prometheus.Desc, collect func(chan<- prometheus.Metric)) error {
	if err := m.registerer.Register(&collector{all, collect}); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

type collector struct {
	all     []*prometheus.Desc
	collect func(chan<- prometheus.Metric)
}

// Describe sends the descriptions of the metrics.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.all {
		to <- d
	}
}

// Collect sends their values.
func (c *collector) Collect(to chan<- prometheus.Metric) { c.collect(to) }
