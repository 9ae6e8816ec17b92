package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// digits formats a number that is not negative with three digits, of which at most three
// are behind the point, or all of those before the point, and never with an exponent.
func digits(v float64) string {
	if v >= 999.5 {
		return thousands(int(math.Round(v)))
	}
	places := 3
	if v >= 1 {
		places = 2 - int(math.Floor(math.Log10(v)+1e-12))
	}
	text := strconv.FormatFloat(v, 'f', places, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// thousands formats a number with separators.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// micros formats a duration in microseconds, or a missing one.
func micros(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v >= 999_500:
		return digits(v/1e6) + " s"
	case v >= 999.5:
		return digits(v/1e3) + " ms"
	}
	return digits(math.Round(v)) + " µs"
}

// perSecond formats the number of containers in a second, of which each takes so many
// microseconds.
func perSecond(v float64) string {
	if v == 0 {
		return "–"
	}
	return digits(1e6/v) + " a second"
}

// times formats a ratio.
func times(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return digits(a/b) + "×"
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
