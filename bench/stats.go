package main

import (
	"slices"
	"time"
)

// summary describes many durations. On a machine with other load the minimum is
// closest to the cost of the work, and the median to the usual duration.
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
