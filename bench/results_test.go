package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// sample has contenders whose ratios are easy to check.
func sample() *results {
	r := &results{
		Machine: machine{Kernel: "6.1", CPU: "a processor", Memory: "8 GiB", FileSystem: "ext4", Go: "go1.24", Cores: 2},
		Seed:    1, Date: "2026-01-02", Versions: map[string]string{"go-cni": "v1.1.14"},
	}
	put := func(scenario string, c contender, verb string, attached int, micros ...int64) {
		r.Series = append(r.Series, series{Scenario: scenario, Contender: c, Verb: verb, Attached: attached, AtOnce: 1,
			Wall: micros, CPU: float64(micros[0]) / 2, Programs: "none", Resident: 40e6})
	}
	for c, ms := range map[contender]int64{goCNIIPT: 100, goCNINFT: 60, oursSets: 4, bare: 2} {
		for _, verb := range []string{verbADD, verbDEL} {
			put("nat", c, verb, 0, ms*1000)
			put(natOften, c, verb, 0, ms*1000)
		}
	}
	for c, ms := range map[contender]int64{goCNI: 100, oneLine: 101, ours: 4, bare: 2} {
		for _, verb := range []string{verbADD, verbDEL} {
			put("default", c, verb, 0, ms*1000, ms*1000)
			put(defaultOften, c, verb, 0, ms*1000, ms*1000, ms*1050)
			put(defaultAttached, c, verb, 10, ms*1000)
			put(defaultAttached, c, verb, 1000, ms*1500)
			put("loopback", c, verb, 0, ms*1000)
		}
	}
	put("default", goCNI, verbCHECK, 0, 50_000, 60_000)
	put("default", oneLine, verbCHECK, 0, 53_000, 63_000)
	slices.SortFunc(r.Series, func(a, b series) int {
		return strings.Compare(a.Contender.String()+a.Scenario+a.Verb, b.Contender.String()+b.Scenario+b.Verb)
	})
	r.Absent = []absent{{Scenario: "nat", Contender: netavark, Why: "not\ninstalled | here"}}
	return r
}

func TestTargets(t *testing.T) {
	texts := func(r *results) (all []string) {
		for _, target := range targets() {
			all = append(all, strings.Join(target.row(r)[1:], " "))
		}
		return all
	}
	want := []string{
		"≥ 25× 25× yes", "≤ 1.8× 2× **no**", "≥ 25× 25× yes", "≤ 1.25× 2× **no**", "≤ 1.3× 1.5× **no**", "≤ 1.3× 1.5× **no**",
		"≤ 1.3× 2× **no**", "≤ 1.1× 2× **no**", "≤ 1.2× not measured –", "≥ 20× 25× yes", "≥ 15× 15× yes", "≤ 1.3× 2× **no**", "≥ 6× 25× yes", "≥ 10× 25× yes",
		"≥ 5× 25× yes",
		"≤ 1.02× 1.01× yes", "≤ 1.02× 1.05× **no**", "≤ 1.02× 1.01× yes", "≤ 1.02× 1.01× yes", "≤ 1.02× 1.01× yes", "≥ 5× 0.99× **no**",
	}
	expect.Same(t, "texts", texts(sample()), want)
	for _, text := range texts(&results{}) {
		if !strings.HasSuffix(text, " not measured –") {
			t.Errorf("nothing was run, and the target is %q", text)
		}
	}
}

func TestPeersThatAreMissingSaySo(t *testing.T) {
	for name, text := range map[string]string{"results.md": sample().markdown(), "README.md": sample().summarySection()} {
		expect.Contains(t, name, text, "| netavark | missing: not installed \\| here |")
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
			expect.Lacks(t, name+": a figure that nobody reads", line, "e+0")
		}
	}
}

func TestResultsSurviveTheFile(t *testing.T) {
	r := sample()
	data := expect.Value(r.encode())(t)
	again := expect.Value(parseResults(data))(t)
	expect.Same(t, "markdown", again.markdown(), r.markdown())
	expect.Lacks(t, "durations take a line each", string(data), "[\n\t\t\t\t100000")
}

func TestRequiredContenders(t *testing.T) {
	r := &results{
		Absent: []absent{
			{Scenario: "nat", Contender: netavark, Why: "not installed"},
			{Scenario: "attached", Contender: goCNINFT, Attached: 3000, Why: "too long"},
		},
	}
	expect.NoError(t, r.complete()) // peers are no error
	r.Absent = append(r.Absent, absent{Scenario: "nat", Contender: oursSets, Why: "no plugin"})
	expect.Says(t, "does tell", r.complete(), "ours in process, nftables sets: no plugin")
}

func TestFiguresAreInTheFormatOfBenchstat(t *testing.T) {
	r := &results{Machine: machine{CPU: "a processor"}, Series: []series{{Scenario: "x", Contender: oursSets, Verb: verbADD, Attached: 10, AtOnce: 2, Wall: []int64{3000}}}}
	want := "goos: linux\ncpu: a processor\nBenchmarkADD/scenario=x/attached=10/contender=ours_in_process,_nftables_sets 2 1500000 ns/op\n"
	expect.Same(t, "benchmarks", r.benchmarks(), want)
}

func TestReplaceSection(t *testing.T) {
	got := expect.Value(replaceSection("a\n"+sectionBegin+"old\n"+sectionEnd+"b\n", "new\n"))(t)
	expect.Same(t, "replaced", got, "a\n"+sectionBegin+"new\n"+sectionEnd+"b\n")
	for _, text := range []string{"", sectionBegin, sectionEnd + sectionBegin} {
		expect.Fails(t, text+": no error", expect.Err(replaceSection(text, "new")))
	}
}

// TestCommittedFilesAreGeneratedFromTheFigures checks that tables, plot and README
// agree with results.json.
func TestCommittedFilesAreGeneratedFromTheFigures(t *testing.T) {
	read := func(name string) string {
		data := expect.Value(os.ReadFile(name))(t)
		return string(data)
	}
	r := expect.Value(parseResults([]byte(read(filepath.Join("results", "results.json")))))(t)
	readme := read(filepath.Join("..", "README.md"))
	section := expect.Value(replaceSection(readme, r.summarySection()))(t)
	want := r.files()
	delete(want, "results.txt")
	want["README.md"] = section
	for name, text := range want {
		path := filepath.Join("results", name)
		if name == "README.md" {
			path = filepath.Join("..", name)
		}
		committed := expect.Value(os.ReadFile(path))(t)
		if string(committed) != text {
			t.Errorf("%s differs from results.json: run go run . -render -readme ../README.md", path)
		}
	}
}
