package graph

import (
	"cmp"
	"strings"
)

// natural compares names as people sort them: web-2 comes before web-10.
func natural(a, b string) int {
	whole := strings.Compare(a, b)
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		if na == 0 || nb == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), whole)
}

// digits returns how many digits a text begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
