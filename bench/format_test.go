package main

import (
	"testing"
	"time"
)

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0001: "0", 0.0567: "0.057", 0.5: "0.5", 1: "1", 2.054: "2.05", 2.5: "2.5", 9.999: "10", 25.44: "25.4", 99.97: "100",
		100: "100", 999.4: "999", 999.6: "1,000", 1031.2: "1,031", 1234567: "1,234,567", -0.25: "-0.25", -12.34: "-12.3", -1500: "-1,500",
	} {
		if got := digits(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "–", 7 * time.Microsecond: "7 µs", 999 * time.Microsecond: "999 µs", 1500 * time.Microsecond: "1.5 ms",
		48_900 * time.Microsecond: "48.9 ms", 999_600 * time.Microsecond: "1 s", 2100 * time.Millisecond: "2.1 s",
		1100 * time.Second: "1,100 s",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	if got := micros(-250); got != "-250 µs" {
		t.Errorf("got %q", got)
	}
}
