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

// sample has contenders whose ratios are easy to check.
func sample() *results {
	r := &results{
		Machine: machine{Kernel: "6.1", CPU: "a processor", Memory: "8 GiB", FileSystem: "ext4", Go: "go1.24", Cores: 2},
		Seed:    1, Date: "2026-01-02", Versions: map[string]string{"go-cni": "v1.1.14"},
	}
	put := func(scenario string, c contender, verb string, attached int, micros ...int64) {
		r.Series = append(r.Series, series{Scenario: scenario, Contender: c, Verb: verb, Attached: attached, AtOnce: 1,
			Rounds: len(micros), Micros: micros, Wall: micros, CPU: float64(micros[0]) / 2, Resident: 40e6})
	}
	for c, ms := range map[contender]int64{goCNIIPT(): 100, goCNINFT(): 60, oursNFT(): 4, theFloor(): 2} {
		for _, verb := range []string{verbADD, verbDEL} {
			put("nat", c, verb, 0, ms*1000)
			put("crowd64", c, verb, 0, ms*1000)
			put("attached", c, verb, 10, ms*1000)
			put("attached", c, verb, 3000, ms*1500)
			put(nativeMany, c, verb, 10_000, ms*1000)
		}
	}
	for c, ms := range map[contender]int64{goCNIPlain(): 100, oneLine(): 101, oursPlain(): 4, theFloor(): 2} {
		for _, verb := range []string{verbADD, verbDEL} {
			put("default", c, verb, 0, ms*1000, ms*1000)
			for _, n := range []int{8, 64} {
				put(crowdName(workDefault, n), c, verb, 0, ms*1000, ms*1000, ms*1050)
			}
			put(defaultAttached, c, verb, 10, ms*1000)
			put(defaultAttached, c, verb, 1000, ms*1500)
			put("loopback", c, verb, 0, ms*1000)
		}
	}
	put("default", goCNIPlain(), verbCHECK, 0, 50_000, 60_000)
	put("default", oneLine(), verbCHECK, 0, 53_000, 63_000)
	slices.SortFunc(r.Series, func(a, b series) int {
		return strings.Compare(a.Contender.String()+a.Scenario+a.Verb, b.Contender.String()+b.Scenario+b.Verb)
	})
	r.Counts = []count{{Scenario: "nat", Contender: oursNFT(), Verb: verbADD, Processes: 1}}
	for _, verb := range []string{verbADD, verbCHECK, verbDEL} {
		r.Counts = append(r.Counts, count{Scenario: "default", Contender: oursPlain(), Verb: verb})
	}
	r.Absent = []absent{{Scenario: "nat", Contender: contender{Kind: kindNetavark}, Why: "not\ninstalled | here"}}
	return r
}

func TestTargets(t *testing.T) {
	texts := func(r *results) (all []string) {
		for _, target := range r.targets() {
			all = append(all, strings.Join([]string{target.wanted(), target.got(), target.verdict()}, " "))
		}
		return all
	}
	const growth = "≤ 1.3× 2× (+2 ms against +1 ms) **no**"
	const noise = "≥ 9.52/s (go-cni's 10/s, less the noise) 9.9/s (0.99× go-cni's) yes"
	want := []string{
		"≤ 0 0 yes", "≥ 25× 25× yes", "≤ 1.8× 2× **no**",
		"≥ 250/s (25× go-cni's) 250/s (25× go-cni's, 0.5× the floor's) yes", "≥ 250/s (25× go-cni's) 250/s (25× go-cni's, 0.5× the floor's) yes",
		growth, "≤ 1.3× not measured –", growth, "≤ 1.3× not measured –",
		"≥ 0.8× 0.5× (CPU time of a DEL: ours in process 2 ms, floor 1 ms, go-cni 50 ms) **no**",

		"≤ 1.3× 2× **no**", "≥ 0.9× 0.5× **no**", "≤ 1.2× 2× **no**", "≤ 64 MB 40 MB yes",
		"≥ 20× 25× yes", "≥ 15× 15× yes", "≤ 1.3× 2× **no**", "≥ 6× 25× yes", "≥ 10× 25× yes", "≤ 0 1 **no**",

		"≥ 5× 25× yes",

		"≤ 2 ms (2 % of go-cni's) 1 ms (1 %) yes", "≤ 1.2 ms (2 % of go-cni's) 3 ms (5 %) **no**", "≤ 2 ms (2 % of go-cni's) 1 ms (1 %) yes",
		noise, noise,
		noise, noise,
		"≥ 5× 0.99× **no**",

		"≥ 8× not measured –",
	}
	if got := texts(sample()); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, text := range texts(&results{}) {
		if !strings.HasSuffix(text, " not measured –") || strings.Contains(text, "≥ 0/s") {
			t.Errorf("nothing was run, and the target is %q", text)
		}
	}
}

// TestGrowthIsNotDividedByNoise: a floor that costs the same with many containers
// gives no ratio, only a bound that is as large as the error of its figures.
func TestGrowthIsNotDividedByNoise(t *testing.T) {
	r := &results{}
	for c, more := range map[contender]int64{oursPlain(): 100, theFloor(): -1} {
		for n, extra := range map[int]int64{10: 0, 1000: more} {
			all := []int64{1000 + extra, 1100 + extra, 1200 + extra, 1300 + extra}
			r.Series = append(r.Series, series{Scenario: defaultAttached, Contender: c, Verb: verbADD, Attached: n, Micros: all, Wall: all})
		}
	}
	got := r.growthTarget("", defaultAttached, verbADD)
	if want := "0.72× (+100 µs against −1 µs)"; got.got() != want {
		t.Errorf("got %q, want %q", got.got(), want)
	}
}

func TestPeersThatAreMissingSaySo(t *testing.T) {
	for name, text := range map[string]string{"results.md": sample().markdown(), "README.md": sample().summarySection()} {
		if want := "| netavark | missing: not installed \\| here |"; !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", name, want, text)
		}
	}
}

// TestTablesAreRectangular counts the cells of every row.
func TestTablesAreRectangular(t *testing.T) {
	for name, text := range map[string]string{"results.md": sample().markdown(), "README.md": sample().summarySection()} {
		want := 0
		for line := range strings.Lines(text) {
			line = strings.ReplaceAll(line, `\|`, "")
			cells := strings.Count(line, "|")
			if cells == 0 {
				want = 0
				continue
			}
			if want != 0 && cells != want {
				t.Errorf("%s: %d cells instead of %d in %q", name, cells, want, line)
			}
			want = cells
			if strings.Contains(line, "e+0") {
				t.Errorf("%s: a figure that nobody reads: %q", name, line)
			}
		}
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

// elements counts the elements of an XML text by name.
func elements(t *testing.T, text string) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for dec := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok {
			all[start.Name.Local]++
		}
	}
}

func TestPlotIsXMLWithAllPoints(t *testing.T) {
	all := elements(t, sample().costPlot())
	points, lines := all["circle"], all["polyline"]
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
	want := r.files()
	want["README.md"] = section
	for name, text := range want {
		path := filepath.Join("results", name)
		if name == "README.md" {
			path = filepath.Join("..", name)
		}
		committed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(committed) != text {
			t.Errorf("%s differs from results.json: run go run . -render -readme ../README.md", path)
		}
	}
}
