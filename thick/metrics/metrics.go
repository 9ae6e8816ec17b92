// Package metrics counts, for Prometheus, what a daemon does for its clients and what its
// Runtime does with containers. It is a module of its own, so that the library's importers
// do not require Prometheus' client.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	rt, err := cni.New(cni.WithObserver(m.Plugin))
//	err = m.Attachments(rt.Attachments)
//	s, err := server.New(backend, server.Options{Observe: m.Request})
//	mux := http.NewServeMux()
//	mux.Handle("/metrics", promhttp.Handler())
//	scraped := &http.Server{Addr: "localhost:9100", Handler: mux, ReadHeaderTimeout: time.Second}
//	go func() { log.Print(scraped.ListenAndServe()) }()
//
// The metrics:
//
//	embedcni_server_request_total{handler,code,method}      requests by path and HTTP status,
//	                                                        as multus_server_request_total
//	embedcni_server_call_duration_seconds{verb}             from the request to its answer
//	embedcni_server_queue_duration_seconds{verb}            of that, waiting for other calls
//	embedcni_server_call_error_total{verb,code}             failed calls by their CNI error code
//	embedcni_plugin_duration_seconds{plugin,kind,verb}      calls of plugins
//	embedcni_plugin_error_total{plugin,kind,verb}           those of them that failed
//	embedcni_attachments{state}                             interfaces on record
//	embedcni_attached_containers                            containers with interfaces that are attached
//	embedcni_containers{verdict}                            containers by the last Health
//	embedcni_swept_total{what}                              removed by Recover and GC
//	embedcni_unswept{what}                                  leftovers that the last of them could not remove
//
// No label has the name of a container, network or interface: their number has no bound.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/embedcni/cni"
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

	plugins      *prometheus.HistogramVec
	pluginErrors *prometheus.CounterVec

	containers *prometheus.GaugeVec
	swept      *prometheus.CounterVec
	unswept    *prometheus.GaugeVec
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
		requests:     counter("server_request_total", "Requests by path and HTTP status.", "handler", "code", "method"),
		calls:        histogram("server_call_duration_seconds", "Time from the request of a CNI call to its answer.", "verb"),
		queued:       histogram("server_queue_duration_seconds", "Time that a CNI call waited for other calls, or for a readiness file.", "verb"),
		callErrors:   counter("server_call_error_total", "Failed CNI calls by their CNI error code; 0 is an error without a code.", "verb", "code"),
		plugins:      histogram("plugin_duration_seconds", "Time of plugin calls.", "plugin", "kind", "verb"),
		pluginErrors: counter("plugin_error_total", "Failed plugin calls.", "plugin", "kind", "verb"),
		containers:   gauge("containers", "Containers by the verdict of the last Health.", "verdict"),
		swept:        counter("swept_total", "Containers and leftovers that Recover and GC removed, and parts that Recover made again.", "what"),
		unswept:      gauge("unswept", "Containers and leftovers that the last Recover or GC could not or must not remove.", "what"),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.requests, m.calls, m.queued, m.callErrors, m.plugins, m.pluginErrors, m.containers, m.swept, m.unswept,
	} {
		errs = append(errs, registerer.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// Request counts a request: server.Options.Observe.
func (m *Metrics) Request(o server.Observation) {
	m.requests.WithLabelValues(orOther(o.Path), strconv.Itoa(o.Status), orOther(o.Method)).Inc()
	if o.Path != "/cni" && o.Path != "/delegate" {
		return
	}
	verb := orOther(o.Verb)
	m.calls.WithLabelValues(verb).Observe(o.Duration.Seconds())
	m.queued.WithLabelValues(verb).Observe(o.Queued.Seconds())
	if o.Err != nil {
		m.callErrors.WithLabelValues(verb, strconv.FormatUint(uint64(o.Code), 10)).Inc()
	}
}

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
	if e.Err != nil {
		m.pluginErrors.WithLabelValues(plugin, kind, e.Operation).Inc()
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

// Attachments registers the numbers of interfaces on record, and of containers with such
// that are attached. They are counted at each collection. list is a Runtime's Attachments.
// If it fails, the collection reports the error.
func (m *Metrics) Attachments(list func(...string) ([]cni.Attachment, error)) error {
	c := &attachments{
		list:       list,
		number:     prometheus.NewDesc("embedcni_attachments", "Interfaces on record by state.", []string{"state"}, nil),
		containers: prometheus.NewDesc("embedcni_attached_containers", "Containers with at least one interface that is attached.", nil, nil),
	}
	if err := m.registerer.Register(c); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

type attachments struct {
	list               func(...string) ([]cni.Attachment, error)
	number, containers *prometheus.Desc
}

// Describe sends the descriptions of the metrics.
func (a *attachments) Describe(to chan<- *prometheus.Desc) {
	to <- a.number
	to <- a.containers
}

// Collect counts.
func (a *attachments) Collect(to chan<- prometheus.Metric) {
	all, err := a.list()
	if err != nil {
		to <- prometheus.NewInvalidMetric(a.number, err)
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
		to <- prometheus.MustNewConstMetric(a.number, prometheus.GaugeValue, float64(n), string(state))
	}
	to <- prometheus.MustNewConstMetric(a.containers, prometheus.GaugeValue, float64(len(containers)))
}
