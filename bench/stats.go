package main

import "slices"

// summary describes measured values. On a machine with other load the least is closest
// to the cost of the work, and the median to the usual one.
type summary struct{ Least, Lower, Median, Upper float64 }

// summarize returns zeros for no values.
func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(part float64) float64 {
		place := part * float64(len(sorted)-1)
		i := int(place)
		return sorted[i] + (place-float64(i))*(sorted[min(i+1, len(sorted)-1)]-sorted[i])
	}
	return summary{at(0), at(0.25), at(0.5), at(0.75)}
}
