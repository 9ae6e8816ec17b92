package daemon

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// state is that of a condition, as /readyz shows it.
type state byte

const (
	met      state = '+'
	unmet    state = '-' // the daemon is not ready
	doubtful state = '!' // it is, and somebody should look
)

// conditions are what a daemon must have to be ready. The zero value is ready.
type conditions struct {
	mu    sync.Mutex
	order []string
	all   map[string]func() (state, string)
}

// set notes a condition, with the reason if it is not met.
func (c *conditions) set(name string, s state, why string) {
	c.ask(name, func() (state, string) { return s, why })
}

// ask has a condition asked for each time.
func (c *conditions) ask(name string, now func() (state, string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]func() (state, string){}
	}
	if c.all[name] == nil {
		c.order = append(c.order, name)
	}
	c.all[name] = now
}

// report returns whether all are met, and a line for each:
//
//	[+]listening
//	[-]networks: no network config found in /etc/embedcni/net.d
func (c *conditions) report() (ready bool, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ready = true
	var b strings.Builder
	for _, name := range c.order {
		s, why := c.all[name]()
		ready = ready && s != unmet
		b.WriteString("[" + string(s) + "]" + name)
		if why != "" {
			b.WriteString(": " + strings.ReplaceAll(why, "\n", "; "))
		}
		b.WriteByte('\n')
	}
	return ready, b.String()
}

// inMetrics describes the metric of the conditions. A condition has one of three states.
func inMetrics() *prometheus.Desc {
	return prometheus.NewDesc("embedcnid_condition", "1 for the state of each condition of /readyz.", []string{"condition", "state"}, nil)
}

// Describe and Collect make the conditions a prometheus.Collector.
func (c *conditions) Describe(to chan<- *prometheus.Desc) { to <- inMetrics() }

// Collect sends a metric for each state of each condition.
func (c *conditions) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.order {
		is, _ := c.all[name]()
		for s, label := range map[state]string{met: "met", unmet: "unmet", doubtful: "doubtful"} {
			value := 0.0
			if s == is {
				value = 1
			}
			to <- prometheus.MustNewConstMetric(inMetrics(), prometheus.GaugeValue, value, name, label)
		}
	}
}
