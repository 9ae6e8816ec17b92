package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// digits formats a number with three digits, or all of those before the point,
// and never with an exponent.
func digits(v float64) string {
	switch size := math.Abs(v); {
	case math.IsInf(v, 0) || math.IsNaN(v):
		return "∞"
	case size >= 999.5:
		return thousands(int(math.Round(v)))
	case size < 0.0005:
		return "0"
	case size < 1:
		return trimZeros(strconv.FormatFloat(v, 'f', 3, 64))
	}
	places := 2 - int(math.Floor(math.Log10(math.Abs(v))+1e-12))
	return trimZeros(strconv.FormatFloat(v, 'f', places, 64))
}

func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// thousands formats a number with separators.
func thousands(n int) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// micros formats a duration in microseconds, or a missing one.
func micros(v float64) string {
	switch size := math.Abs(v); {
	case v == 0:
		return "–"
	case size >= 999_500:
		return digits(v/1e6) + " s"
	case size >= 999.5:
		return digits(v/1e3) + " ms"
	}
	return digits(math.Round(v)) + " µs"
}

// times formats a ratio.
func times(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return digits(a/b) + "×"
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
