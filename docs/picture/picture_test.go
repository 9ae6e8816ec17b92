package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/embedcni/cni/internal/expect"
)

func life(t *testing.T) *picture {
	t.Helper()
	return expect.Value(parse(string(expect.Value(os.ReadFile("../life.txt"))(t))))(t)
}

// TestPictureIsThatOfItsText compares what is committed.
func TestPictureIsThatOfItsText(t *testing.T) {
	got := string(expect.Value(os.ReadFile("../life.svg"))(t))
	expect.That(t, got == life(t).svg(), "docs/life.svg is not that of docs/life.txt: run go run ./docs/picture docs/life.txt >docs/life.svg")
}

func TestPictureIsWellFormed(t *testing.T) {
	p := life(t)
	p.arrows[0].label = []string{`<&">`}
	texts := 0
	for decoder := xml.NewDecoder(strings.NewReader(p.svg())); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "text" {
			texts++
		}
	}
	want := 0
	for _, b := range p.boxes {
		want += len(b.lines)
	}
	for _, a := range p.arrows {
		want += len(a.label)
	}
	expect.Same(t, "texts", texts, want)
	expect.Contains(t, "picture", p.svg(), "<title>The life of a container: ", "<text", "&lt;&amp;&#34;&gt;")
}

// TestNothingIsHidden: boxes are in the picture and beside each other or in a group, and their
// texts are in them.
func TestNothingIsHidden(t *testing.T) {
	p := life(t)
	for name, b := range p.boxes {
		expect.That(t, b.x >= 0 && b.y >= 0 && b.x+b.width <= p.width && b.y+b.height <= p.height, "%s is outside of the picture", name)
		for n, line := range b.lines {
			letter := 6 // on average
			if n == 0 {
				letter = 8
			}
			expect.That(t, letter*utf8.RuneCountInString(line) < b.width, "%s: %q is wider than its box", name, line)
		}
		for other, o := range p.boxes {
			apart := b.x+b.width < o.x || o.x+o.width < b.x || b.y+b.height < o.y || o.y+o.height < b.y
			around := o.group && b.x > o.x && b.y > o.y && b.x+b.width < o.x+o.width && b.y+b.height < o.y+o.height
			expect.That(t, name == other || b.group || apart || around, "%s and %s overlap", name, other)
		}
	}
}

func TestLinesOfArrows(t *testing.T) {
	const boxes = "size 300 300\nbox a 10 10 20 20 red\nbox b 100 110 20 20 red\n"
	for ends, want := range map[string]string{
		"a:e b:w":   "d=M30,20 H61 V120 H92", // ends before its head
		"a:e b:n":   "d=M30,20 H110 V102",
		"a:s b:w":   "d=M20,30 V120 H92",
		"a:s b:n+5": "d=M20,30 V66 H115 V102",
		"b:w a:e":   "d=M100,120 H69 V20 H38",
		"b:n a:s-3": "d=M110,110 V74 H17 V38",
	} {
		p := expect.Value(parse(boxes + "arrow " + ends + " blue"))(t)
		expect.Same(t, ends, "d="+p.arrows[0].line(), want) // M20 alone is the name of a figure
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"size 1":                                  "line 1: size 1: ",
		"circle a 1":                              "there is no circle",
		"\nbox a 1 2 3 4 pink":                    `line 2: box a 1 2 3 4 pink: there is no colour "pink"`,
		"box a 1 2 3 four red":                    "expected integer",
		"box a 1 2 3 4 red\nbox a 1 2 3 4 red":    "there is a box a already",
		"box a 1 2 3 4 red\narrow a:e b:w red":    "there is no box b before",
		"box a 1 2 3 4 red\narrow a:e a red":      "a has no side",
		"box a 1 2 3 4 red\narrow a:e a:x red":    "not x",
		"box a 1 2 3 4 red\narrow a:e a:w1x red":  "invalid syntax",
		"box a 1 2 3 4 red\narrow a:e a:w":        "two ends and a colour",
		"box a 1 2 3 4 red\narrow a:e a:w purple": `there is no colour "purple"`,
	} {
		_, err := parse(text)
		expect.Says(t, text, err, want)
	}
}
