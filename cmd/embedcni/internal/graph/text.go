package graph

import (
	"math"
	"strings"
)

// glyph is the width of a character of a monospaced font, in thousandths of its size. The
// common ones have 602 at most.
const glyph = 605

func width(s string, size int) int { return int(math.Ceil(float64(len([]rune(s))*size*glyph) / 1000)) }

// fit returns how many characters have room in a width.
func fit(w, size int) int { return w * 1000 / (size * glyph) }

// cut shortens a text to n characters. The end of a name often differs where its beginning
// does not, but a container's ID is known by its beginning.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:max(n-1, 0)]) + "…"
}

// wrap breaks a text into lines of n characters, at spaces if it can.
func wrap(s string, n int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) <= n {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		r := []rune(word)
		for len(r) > n {
			lines = append(lines, string(r[:n]))
			r = r[n:]
		}
		line = string(r)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
