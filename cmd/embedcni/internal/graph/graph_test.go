package graph

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

var update = flag.Bool("update", false, "write the expected files again")

// The pictures and texts of whole models are those in testdata.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		host Host
	}{{"empty", Host{Name: "bare"}}, {"twenty", node(20)}, {"twohundred", node(200)}} {
		golden(t, c.name+".svg", c.host, WriteSVG)
		golden(t, c.name+".dot", c.host, WriteDOT)
	}
}

func golden(t *testing.T, name string, h Host, write func(io.Writer, Host) error) {
	t.Helper()
	var got bytes.Buffer
	expect.NoError(t, write(&got, h))
	path := filepath.Join("testdata", name)
	if *update {
		expect.NoError(t, os.MkdirAll("testdata", 0o755), os.WriteFile(path, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(path)
	expect.NoError(t, err)
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s has changed; look at it, and if it is right: go test -update", name)
	}
}

// Whatever is on a node: no two boxes overlap, all are where they belong, no text leaves its
// box, and no line from a bridge crosses a box.
func TestNothingOverlaps(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		h := random(r)
		p := layout(h)
		for i, s := range p.shapes {
			inside(t, s, p)
			for _, other := range p.shapes[:i] {
				if overlap(s.rect, other.rect) {
					t.Fatalf("seed %d: %s %v overlaps %s %v", seed, s.class, s.rect, other.class, other.rect)
				}
			}
		}
		for _, w := range p.wires {
			for _, s := range p.shapes {
				if overlap(s.rect, rect{w.x1, w.y1, max(w.x2-w.x1, 1), max(w.y2-w.y1, 1)}) {
					t.Fatalf("seed %d: a line %+v crosses %s %v", seed, w, s.class, s.rect)
				}
			}
		}
		for _, l := range p.labels {
			expect.Must(t, l.x+width(l.s, l.size) <= p.w && l.y < p.h, "seed %d: %q leaves the picture", seed, l.s)
		}
	}
}

func overlap(a, b rect) bool {
	return a.x < b.right() && b.x < a.right() && a.y < b.bottom() && b.y < a.bottom()
}

// inside checks that a shape is in the host, or outside if it is a port or of the legend,
// and that its texts are in it, one below the other.
func inside(t *testing.T, s shape, p picture) {
	t.Helper()
	in := s.x >= p.host.x && s.right() <= p.host.right() && s.y >= p.host.y && s.bottom() <= p.host.bottom()
	legend := s.y >= p.host.bottom() && s.bottom() <= p.h && s.right() <= p.w
	port := strings.HasPrefix(s.class, classPort) && s.bottom() <= p.host.y && s.right() <= p.w && s.y >= 0
	expect.Must(t, in || legend || port, "%s %v is neither in the host %v nor beside it", s.class, s.rect, p.host.rect)
	for i, l := range s.texts {
		left, right := l.x, l.x+width(l.s, l.size)
		if l.right {
			left, right = l.x-width(l.s, l.size), l.x
		}
		expect.Must(t, left >= s.x && right <= s.right() && l.y-l.size >= s.y && l.y < s.bottom(), "%q at %d to %d leaves %s %v", l.s, left, right, s.class, s.rect)
		for _, other := range s.texts[:i] {
			oleft, oright := other.x, other.x+width(other.s, other.size)
			if other.right {
				oleft, oright = other.x-width(other.s, other.size), other.x
			}
			expect.Must(t, l.y != other.y || left >= oright || oleft >= right, "%q is written over %q", l.s, other.s)
		}
	}
}

// Both texts are well formed, whatever the names are, and have each container.
func TestEscapes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		h := random(r)
		var svg, dot bytes.Buffer
		expect.NoError(t, WriteSVG(&svg, h), WriteDOT(&dot, h))
		titles := readSVG(t, svg.Bytes())
		for _, s := range h.Segments {
			for _, m := range s.Members {
				expect.Must(t, titles[tooltip(m)], "seed %d: no tooltip %q", seed, tooltip(m))
			}
		}
		expect.Must(t, strings.Count(strings.ReplaceAll(strings.ReplaceAll(dot.String(), `\\`, ""), `\"`, ""), `"`)%2 == 0, "seed %d: a quote is open", seed)
	}
	hostile := Host{Name: "a\"b\\c\n<d>&\x00"}
	var svg, dot bytes.Buffer
	expect.NoError(t, WriteSVG(&svg, hostile), WriteDOT(&dot, hostile))
	readSVG(t, svg.Bytes())
	expect.Contains(t, "DOT", dot.String(), `graph "host a\"b\\c\n<d>&" {`)
}

// readSVG parses a picture and returns its tooltips.
func readSVG(t *testing.T, svg []byte) map[string]bool {
	t.Helper()
	titles := map[string]bool{}
	dec := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return titles
		}
		expect.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "title" {
			var text string
			expect.NoError(t, dec.DecodeElement(&text, &start))
			titles[text] = true
		}
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want []string
	}{
		{"", 5, nil},
		{"one two three", 7, []string{"one two", "three"}},
		{"abcdefghij kl", 4, []string{"abcd", "efgh", "ij", "kl"}},
		{"網路 é", 3, []string{"網路", "é"}},
	} {
		expect.Same(t, fmt.Sprintf("%q in lines of %d", c.s, c.n), wrap(c.s, c.n), c.want)
	}
}

func TestNatural(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"web-2", "web-10", -1}, {"web-10", "web-2", 1}, {"a", "a", 0}, {"a", "ab", -1},
		{"a01", "a1", -1}, {"a1", "a01", 1}, {"a2b", "a2a", 1}, {"9", "a", -1},
	} {
		expect.Same(t, c.a+" and "+c.b, natural(c.a, c.b), c.want)
	}
}
