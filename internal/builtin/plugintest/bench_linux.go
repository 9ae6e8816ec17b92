package plugintest

import (
	"testing"
	"time"
)

// Benchmark measures ADD and DEL alternately, and reports the time of each.
func Benchmark(b *testing.B, s Side, c Call) {
	b.Helper()
	var adding, deleting time.Duration
	n := 0
	for range b.N {
		begin := time.Now()
		own := c
		own.Prev = s.Must(b, "ADD", c)
		added := time.Now()
		s.Must(b, "DEL", own)
		adding += added.Sub(begin)
		deleting += time.Since(added)
		n++
	}
	b.ReportMetric(float64(adding.Microseconds())/float64(n), "µs/ADD")
	b.ReportMetric(float64(deleting.Microseconds())/float64(n), "µs/DEL")
}
