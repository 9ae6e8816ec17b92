package main

import (
	"slices"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	us := time.Microsecond
	for name, tt := range map[string]struct {
		micros []int64
		want   summary
	}{
		"none":  {nil, summary{}},
		"one":   {[]int64{7}, summary{1, 7 * us, 7 * us, 7 * us}},
		"three": {[]int64{30, 10, 20}, summary{3, 10 * us, 20 * us, 30 * us}},
		"ten":   {[]int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, summary{10, us, 6 * us, 9 * us}},
	} {
		if got := summarize(tt.micros); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestRateIsThatOfTheMedianRound(t *testing.T) {
	s := series{Micros: make([]int64, 24), Wall: []int64{1_000_000, 2_000_000, 9_000_000}}
	if got := s.rate(); got != 4 {
		t.Errorf("8 in 2 s are %g a second, want 4", got)
	}
	if got := (series{}).rate(); got != 0 {
		t.Errorf("nothing measured is %g a second, want 0", got)
	}
}

func TestMedianWithError(t *testing.T) {
	if m, e := medianWithError(nil); m != 0 || e != 0 {
		t.Errorf("nothing: %g ± %g", m, e)
	}
	if m, e := medianWithError([]float64{7}); m != 7 || e != 0 {
		t.Errorf("one value: %g ± %g", m, e)
	}
	// An outlier changes neither.
	m, e := medianWithError([]float64{1, 2, 3, 4, 1000, 2, 3, 4, 3})
	if m != 3 || e < 0.61 || e > 0.62 {
		t.Errorf("got %g ± %g, want 3 ± 0.617", m, e)
	}
}

func TestEachIsTheRoundsTimeForAContainer(t *testing.T) {
	s := series{Micros: make([]int64, 16), Wall: []int64{800, 1600}}
	if got := s.each(); !slices.Equal(got, []float64{100, 200}) {
		t.Errorf("got %v", got)
	}
}
