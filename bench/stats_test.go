package main

import (
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
