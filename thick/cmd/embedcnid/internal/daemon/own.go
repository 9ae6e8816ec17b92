package daemon

import (
	"cmp"
	"errors"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// own are the metrics of the daemon itself. Those of calls and containers are in package metrics.
type own struct {
	reloads  *prometheus.CounterVec
	reloaded prometheus.Gauge
}

// newOwn registers them, with those of the process.
func newOwn(registerer prometheus.Registerer, version string, c *conditions) (own, error) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "embedcnid_build_info", Help: "1; the labels say of which build.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision(), "goversion": runtime.Version()},
	})
	build.Set(1)
	o := own{
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "embedcnid_config_reloads_total", Help: "How often the configuration was read again.",
		}, []string{"outcome"}),
		prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "embedcnid_config_last_reload_success_timestamp_seconds", Help: "When the configuration was last read without a mistake.",
		}),
	}
	o.reloads.WithLabelValues("success")
	o.reloads.WithLabelValues("failure")
	o.reloaded.SetToCurrentTime()
	var errs []error
	for _, one := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build, o.reloads, o.reloaded, c,
	} {
		errs = append(errs, registerer.Register(one))
	}
	return o, errors.Join(errs...)
}

// reload counts a reload.
func (o own) reload(err error) {
	if err != nil {
		o.reloads.WithLabelValues("failure").Inc()
		return
	}
	o.reloads.WithLabelValues("success").Inc()
	o.reloaded.SetToCurrentTime()
}

// revision returns the commit of the build, as far as the Go command knew it.
func revision() (found string) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				found = s.Value
			}
		}
	}
	return cmp.Or(found, "unknown")
}
