package main

import (
	"math"
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

// medianWithError returns the median and its standard error, which it computes
// from the middle half of the values: single ones may be far off.
func medianWithError(values []float64) (median, unsure float64) {
	if len(values) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(part float64) float64 {
		place := part * float64(len(sorted)-1)
		i := int(place)
		return sorted[i] + (place-float64(i))*(sorted[min(i+1, len(sorted)-1)]-sorted[i])
	}
	// Of normally distributed values the middle half is 1.35 standard deviations
	// wide, and the standard error of the median is 1.25 times that of the mean.
	return at(0.5), 1.25 / 1.35 * (at(0.75) - at(0.25)) / math.Sqrt(float64(len(sorted)))
}
