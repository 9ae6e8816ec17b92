package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/refplugins"
)

// BenchmarkPair attaches containers by go-cni and, after the change of the import
// line, by this library, in one process and one after the other. ms is the median of
// go-cni's time, more-ms what ours takes longer: the median of the differences within
// a pair, and the quartiles. CPU time and context switches are medians as well.
//
//	go test -run '^$' -bench Pair -benchtime 200x
func BenchmarkPair(b *testing.B) {
	plugins, err := refplugins.Dir(b.Context(), io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	for _, work := range []work{workBridge, workPtpNAT, workDefault} {
		b.Run(string(work), func(b *testing.B) {
			h, err := startWorker(spec{Contender: oneLine(), Work: work, Dir: b.TempDir(), RunDir: "/run/" + b.Name(), Plugins: plugins}, false)
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := h.stop(); err != nil {
					b.Error(err)
				}
			}()
			if _, err := h.do(order{Verb: "pair", Count: 3}); err != nil { // the first containers make what all share
				b.Fatal(err)
			}
			r, err := h.do(order{Verb: "pair", Count: b.N})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(0, "ns/op")
			for _, verb := range []string{verbADD, verbDEL} {
				reportPairs(b, strings.ToLower(verb), r.Pairs[verb])
			}
		})
	}
}

func reportPairs(b *testing.B, verb string, pairs [][2]usage) {
	value := func(which int, of func(usage) float64) (all []float64) {
		for _, p := range pairs {
			all = append(all, of(p[which]))
		}
		return all
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	for name, of := range map[string]func(usage) float64{
		"ms":       func(u usage) float64 { return ms(u.Took) },
		"cpu-ms":   func(u usage) float64 { return ms(u.CPU) },
		"switches": func(u usage) float64 { return float64(u.Switches) },
	} {
		theirs, more := value(0, of), value(1, of)
		b.ReportMetric(quartile(theirs, 2), fmt.Sprintf("%s-%s", verb, name))
		for i := range more {
			more[i] -= theirs[i]
		}
		b.ReportMetric(quartile(more, 2), fmt.Sprintf("%s-more-%s", verb, name))
		if name == "ms" {
			b.ReportMetric(quartile(more, 1), fmt.Sprintf("%s-more-%s-q1", verb, name))
			b.ReportMetric(quartile(more, 3), fmt.Sprintf("%s-more-%s-q3", verb, name))
		}
	}
}

func quartile(values []float64, q int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[q*(len(sorted)-1)/4]
}
