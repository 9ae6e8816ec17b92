package plugintest

import (
	"testing"
	"time"
)

// Benchmark measures ADD and DEL alternately, in process and by the reference
// plugin, and reports the time of each.
func Benchmark(b *testing.B, ours Side, c Call) {
	for _, s := range []Side{ours, Theirs(b, ours.Host)} {
		b.Run(s.Name, func(b *testing.B) {
			var adding, deleting time.Duration
			for range b.N {
				begin := time.Now()
				own := c
				own.Prev = s.Must(b, "ADD", c)
				added := time.Now()
				s.Must(b, "DEL", own)
				adding += added.Sub(begin)
				deleting += time.Since(added)
			}
			b.ReportMetric(float64(adding.Microseconds())/float64(b.N), "µs/ADD")
			b.ReportMetric(float64(deleting.Microseconds())/float64(b.N), "µs/DEL")
		})
	}
}
