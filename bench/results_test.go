package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sample has two contenders whose ratios are easy to check.
func sample() *results {
	r := &results{
		Machine: machine{Kernel: "6.1", CPU: "a processor", Memory: "8 GiB", FileSystem: "ext4", Go: "go1.24", Cores: 2},
		Seed:    1, Date: "2026-01-02", Versions: map[string]string{"go-cni": "v1.1.14"},
	}
	put := func(scenario string, c contender, verb string, attached int, micros ...int64) {
		r.Series = append(r.Series, series{Scenario: scenario, Contender: c, Verb: verb, Attached: attached, AtOnce: 1,
			Rounds: len(micros), Micros: micros, Wall: micros})
	}
	for c, ms := range map[contender]int64{goCNIIPT(): 100, goCNINFT(): 60, oursNFT(): 4, theFloor(): 2} {
		for _, verb := range []string{"ADD", "DEL"} {
			put("nat", c, verb, 0, ms*1000)
			put("crowd64", c, verb, 0, ms*1000)
			put("attached", c, verb, 10, ms*1000)
			put("attached", c, verb, 3000, ms*1500)
		}
	}
	put("nat", pooled(false), "ADD", 0, 500)
	put("nat", pooled(false), "DEL", 0, 500)
	for n, ms := range map[int]int64{100: 20, 1000: 250} {
		put("verdict", oursNFT(), verbVerdict, n, ms*1000)
	}
	put("verdict", oursNFT(), verbRecover, 100, 40_000)
	slices.SortFunc(r.Series, func(a, b series) int {
		return strings.Compare(a.Contender.String()+a.Scenario+a.Verb, b.Contender.String()+b.Scenario+b.Verb)
	})
	r.Counts = []count{{Scenario: "nat", Contender: oursNFT(), Verb: "ADD", Processes: 1}}
	return r
}

func TestTargets(t *testing.T) {
	var got []string
	for _, target := range sample().targets() {
		got = append(got, strings.Join([]string{target.wanted(), target.got(), target.verdict()}, " "))
	}
	want := []string{
		"≤ 1.5× 2× **no**", "≥ 20× 25× yes", "≥ 15× 15× yes", "≥ 8× not measured –", "≤ 1.3× 2× **no**", "≥ 6× 25× yes",
		"≥ 6× not measured –", "≥ 10× 25× yes", "≤ 1.3× 1.5× **no**", "≤ 0 1 **no**", "≤ 1 ms 0.5 ms yes", "≤ 0.3 ms not measured –",
		"≤ 500 ms 250 ms yes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestVerdictsShowWhetherTheyAreLinear(t *testing.T) {
	_, got, _ := strings.Cut(sample().markdown(), "when it starts.\n\n")
	got, _, _ = strings.Cut(got, "\n\n")
	want := "| | 100 | each | 1,000 | each | each, last against first |\n|---|---:|---:|---:|---:|---:|\n" +
		"| verdict: ours in process, nftables sets | 20 ms | 200 µs | 250 ms | 250 µs | 1.25× |\n" +
		"| Recover: ours in process, nftables sets | 40 ms | 400 µs | – | – | 1× |"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestResultsSurviveTheFile(t *testing.T) {
	r := sample()
	data, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseResults(data)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.markdown(), r.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if strings.Contains(string(data), "[\n\t\t\t\t100000") {
		t.Error("durations take a line each")
	}
}

func TestRequiredContendersAndForbiddenLeftovers(t *testing.T) {
	r := &results{
		Absent: []absent{
			{Scenario: "nat", Contender: contender{Kind: kindNetavark}, Why: "not installed"},
			{Scenario: "attached", Contender: goCNINFT(), Attached: 3000, Why: "too long"},
		},
		Left: []left{{Scenario: "nat", Contender: goCNINFT(), Added: []string{"link x"}}},
	}
	if err := r.complete(); err != nil {
		t.Errorf("peers are no error: %v", err)
	}
	r.Absent = append(r.Absent, absent{Scenario: "nat", Contender: oursNFT(), Why: "no plugin"})
	r.Left = append(r.Left, left{Scenario: "nat", Contender: theFloor(), Added: []string{"link y"}})
	err := r.complete()
	for _, want := range []string{"ours in process, nftables sets: no plugin", "link y"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not tell of %q", err, want)
		}
	}
}

func TestPlotIsXMLWithAllPoints(t *testing.T) {
	plot := sample().costPlot()
	points, lines := 0, 0
	for dec := xml.NewDecoder(strings.NewReader(plot)); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			switch start.Name.Local {
			case "circle":
				points++
			case "polyline":
				lines++
			}
		}
	}
	if points != 8 || lines != 4 {
		t.Errorf("%d points on %d lines, want 8 on 4", points, lines)
	}
	if empty := drawPlot(nil); strings.Contains(empty, "NaN") || strings.Contains(empty, "Inf") {
		t.Errorf("a plot of nothing: %s", empty)
	}
}

func TestScale(t *testing.T) {
	s := scale{lo: 1, hi: 100, begin: 0, end: 200}
	if got := []float64{s.at(1), s.at(10), s.at(100)}; !slices.Equal(got, []float64{0, 100, 200}) {
		t.Errorf("1, 10 and 100 are at %v", got)
	}
	if got := (scale{lo: 0.9, hi: 60}).ticks(); !slices.Equal(got, []float64{1, 2, 5, 10, 20, 50}) {
		t.Errorf("ticks %v", got)
	}
}

func TestLabelsDoNotOverlap(t *testing.T) {
	curves := []curve{{points: []point{{1, 5}}}, {}, {points: []point{{1, 5.01}}}, {points: []point{{10, 1}}}}
	heights := newAxes(curves).labels(curves)
	ordered := slices.Sorted(slices.Values([]float64{heights[0], heights[2], heights[3]}))
	for i := range 2 {
		if ordered[i+1]-ordered[i] < labelGap {
			t.Errorf("names at %v", heights)
		}
	}
}

func TestReplaceSection(t *testing.T) {
	got, err := replaceSection("a\n"+sectionBegin+"old\n"+sectionEnd+"b\n", "new\n")
	if want := "a\n" + sectionBegin + "new\n" + sectionEnd + "b\n"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, text := range []string{"", sectionBegin, sectionEnd + sectionBegin} {
		if _, err := replaceSection(text, "new"); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// TestCommittedFilesAreGeneratedFromTheFigures checks that tables, plot and README
// agree with results.json.
func TestCommittedFilesAreGeneratedFromTheFigures(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	r, err := parseResults([]byte(read(filepath.Join("results", "results.json"))))
	if err != nil {
		t.Fatal(err)
	}
	readme := read(filepath.Join("..", "README.md"))
	section, err := replaceSection(readme, r.summarySection())
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]string{
		"results.md": {read(filepath.Join("results", "results.md")), r.markdown()},
		"cost.svg":   {read(filepath.Join("results", "cost.svg")), r.costPlot()},
		"README.md":  {readme, section},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s differs from results.json: run go run ./bench -render -readme README.md", name)
		}
	}
}
