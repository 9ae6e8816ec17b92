package main

import (
	"slices"
	"time"
)

// summary is what is said of many durations. On a machine that does other
// things as well, the least is closest to what the work costs, and the median
// to what it is like.
type summary struct {
	N                int
	Min, Median, P90 time.Duration
}

func summarize(micros []int64) summary {
	if len(micros) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(micros))
	at := func(part float64) time.Duration {
		return time.Duration(sorted[int(part*float64(len(sorted)-1)+0.5)]) * time.Microsecond
	}
	return summary{N: len(sorted), Min: at(0), Median: at(0.5), P90: at(0.9)}
}
