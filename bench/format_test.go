package main

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0001: "0", 0.0567: "0.057", 0.5: "0.5", 1: "1", 2.054: "2.05", 2.5: "2.5", 9.999: "10", 25.44: "25.4", 99.97: "100",
		100: "100", 999.4: "999", 999.6: "1,000", 1031.2: "1,031", 1234567: "1,234,567",
	} {
		expect.Same(t, fmt.Sprint(v), digits(v), want)
	}
}

func TestMicros(t *testing.T) {
	for v, want := range map[float64]string{
		0: "–", 7: "7 µs", 999: "999 µs", 1500: "1.5 ms", 48_900: "48.9 ms", 999_600: "1 s", 2.1e6: "2.1 s", 1.1e9: "1,100 s",
	} {
		expect.Same(t, fmt.Sprint(v), micros(v), want)
	}
}

func TestSummarize(t *testing.T) {
	for name, tt := range map[string]struct {
		values []float64
		want   summary
	}{
		"none": {nil, summary{}},
		"one":  {[]float64{7}, summary{7, 7, 7, 7}},
		"five": {[]float64{30, 10, 20, 50, 40}, summary{10, 20, 30, 40}},
		"even": {[]float64{4, 3, 2, 1}, summary{1, 1.75, 2.5, 3.25}},
	} {
		expect.Same(t, name, summarize(tt.values), tt.want)
	}
}

func TestEachIsTheRoundsTimeForAContainer(t *testing.T) {
	s := series{AtOnce: 8, Wall: []int64{800, 1600}}
	expect.Same(t, "each", s.each(), []float64{100, 200})
}
