package cut

import (
	"slices"
	"testing"
)

func TestLines(t *testing.T) {
	for text, want := range map[string][]string{
		"":          nil,
		"a":         {"a"},
		"a\n":       {"a\n"},
		"\n\nb":     {"\n", "\n", "b"},
		"a\r\nb\n":  {"a\r\n", "b\n"},
		"a\nb\nc\n": {"a\n", "b\n", "c\n"},
	} {
		if got := slices.Collect(Lines(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		var got []string
		for line := range Lines([]byte(text)) {
			got = append(got, string(line))
		}
		if !slices.Equal(got, want) {
			t.Errorf("bytes %q: %q, want %q", text, got, want)
		}
	}
	for line := range Lines("a\nb\n") {
		if line != "a\n" {
			t.Errorf("%q after a break", line)
		}
		break
	}
}
