package ports

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A code says in few characters which ports claims are for, without their addresses:
//
//	t80.8000-8019u53
//
// A letter begins each protocol. Claims whose code would be too long are codeAny,
// which may be any.
const codeAny = "any"

// codeLength is the length of the longest code but codeAny. With the name of a record
// it fits in the name of a file.
const codeLength = 200

// Code returns the code of claims. It is empty if there are none.
func Code(claims []Claim) string {
	sorted := slices.Clone(claims)
	slices.SortFunc(sorted, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	var b strings.Builder
	for i := 0; i < len(sorted); {
		first := sorted[i]
		last := first.Port
		for i++; i < len(sorted) && sorted[i].Protocol == first.Protocol && int(sorted[i].Port) <= int(last)+1; i++ {
			last = sorted[i].Port
		}
		letter := first.Protocol[:1]
		if begun := strings.LastIndexAny(b.String(), "stu"); begun >= 0 && b.String()[begun:begun+1] == letter {
			letter = "."
		}
		b.WriteString(letter + strconv.Itoa(int(first.Port)))
		if last > first.Port {
			fmt.Fprintf(&b, "-%d", last)
		}
		if b.Len() > codeLength {
			return codeAny
		}
	}
	return b.String()
}

// Coded reports whether claims of that code may be for the protocol and port of one of
// these. It returns true for a code that it cannot read.
func Coded(code string, claims []Claim) (found bool) {
	legible := EachSpan(code, func(s Span) {
		found = found || slices.ContainsFunc(claims, func(c Claim) bool {
			return c.Protocol[0] == s.Letter && s.First <= c.Port && c.Port <= s.Last
		})
	})
	return found || !legible
}

// Span is a row of ports in a code.
type Span struct {
	Letter      byte // the first of the protocol
	First, Last uint16
}

// EachSpan calls found for each row of ports in a code, and reports whether it can read
// all of it.
func EachSpan(code string, found func(Span)) (legible bool) {
	var s Span
	for code != "" {
		if code[0] != '.' {
			s.Letter = code[0]
		}
		code = code[1:]
		end := strings.IndexAny(code, ".stu")
		if end < 0 {
			end = len(code)
		}
		first, last, ranged := strings.Cut(code[:end], "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, lerr := strconv.ParseUint(last, 10, 16)
		if err != nil || lerr != nil || s.Letter == 0 || strings.IndexByte("stu", s.Letter) < 0 {
			return false
		}
		s.First, s.Last = uint16(from), uint16(to)
		found(s)
		code = code[end:]
	}
	return true
}
