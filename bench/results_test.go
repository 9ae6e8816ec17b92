package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
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

// written returns the texts that are made of the sample, by the names of their files.
func written(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"results.md": sample().markdown()}
	for path, text := range expect.Value(documents(sample(), weighed(), sectionBegin+sectionEnd))(t) {
		all[filepath.Base(path)] = text
	}
	return all
}

func weighed() *importers {
	return &importers{Date: "2026-01-02", Go: "go1.25", Arch: "amd64", Programs: []importer{
		{Contender: goCNI, Bytes: 6_000_000, Modules: 10, Packages: 20, Lines: 3000, Own: 1000},
		{Contender: ours, Bytes: 9_500_000, Modules: 8, Packages: 60, Lines: 40_000, Own: 20_000},
	}}
}

func TestReadmeHasOneRow(t *testing.T) {
	want := sectionBegin + `| default conflist: bridge, ipMasq, portmap, firewall, tuning | ADD | DEL | 64 at once |
|---|---:|---:|---:|
| go-cni / embedcni, built-in plugins | 100 / 4 ms | 100 / 4 ms | 10 / 250 a second |
` + sectionEnd
	expect.Same(t, "README.md", written(t)["README.md"], want)
}

func TestImportersAreComparedWithTheFirst(t *testing.T) {
	want := `|  | bytes | more than go-cni | lines of the library | with its dependencies | packages | modules |
|---|---:|---:|---:|---:|---:|---:|
| go-cni | 6 MB | – | 1,000 | 3,000 | 20 | 10 |
| embedcni, built-in plugins | 9.5 MB | 3.5 MB | 20,000 | 40,000 | 60 | 8 |

The program makes go-cni's seven calls and is stripped (linux/amd64, go1.25, 2026-01-02). Lines are those of code, without comments; the standard library does not count.
`
	expect.Same(t, "table", weighed().markdown(), want)
}

func TestAcrossIsLogarithmic(t *testing.T) {
	middle := math.Sqrt(axisLeast * axisMost)
	for us, want := range map[float64]float64{
		axisLeast: plotLeft, middle: (plotLeft + plotRight) / 2, axisMost: plotRight, axisLeast / 2: plotLeft, axisMost * 2: plotRight,
	} {
		expect.Same(t, fmt.Sprint("place of ", us), math.Round(across(us)), float64(want))
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	for dec := xml.NewDecoder(strings.NewReader(sample().plot())); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			expect.NoError(t, err)
		}
	}
	expect.Contains(t, "plot", sample().plot(), ">4 ms, 25× as fast<")
}

func TestImporterIsCounted(t *testing.T) {
	const library = "github.com/containernetworking/cni"
	file := filepath.Join(t.TempDir(), "main.go")
	expect.NoError(t, os.WriteFile(file, []byte("package main\n\nimport _ \""+library+"/pkg/utils\"\n\nfunc main() {}\n"), 0o644))
	var got importer
	expect.NoError(t, got.count(t.Context(), file, library))
	expect.That(t, got.Own > 0, "the library has %d lines", got.Own)
	got.Own, got.Lines = 0, got.Lines-got.Own
	expect.Same(t, "the package, those that it imports, and other lines", got, importer{Modules: 1, Packages: 2})
}

func TestCodeLines(t *testing.T) {
	source := "// Package x.\npackage x\n\nvar a = `1\n2\n3` // three\n/* none */\nfunc f() {}\n"
	expect.Same(t, "lines", codeLines([]byte(source)), 5)
}

func TestPeersThatAreMissingSaySo(t *testing.T) {
	for name, want := range map[string]string{
		"results.md": "| netavark | missing: not installed \\| here |",
		"cost.md":    "netavark (not installed \\| here)",
	} {
		expect.Contains(t, name, written(t)[name], want)
	}
}

// TestTablesAreRectangular counts the cells of every row.
func TestTablesAreRectangular(t *testing.T) {
	for name, text := range written(t) {
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
	r, path := sample(), filepath.Join(t.TempDir(), "figures")
	expect.NoError(t, writeFigures(path, r))
	again := &results{}
	expect.NoError(t, readJSON(path, again))
	expect.Same(t, "results", again, r)
	expect.Lacks(t, "durations take a line each", string(expect.Value(os.ReadFile(path))(t)), "[\n\t\t\t\t100000")
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
	expect.Says(t, "does tell", r.complete(), "embedcni, built-in plugins: no plugin")
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

// TestDocumentsAreThoseOfTheFigures compares the committed documents with bench/results.
func TestDocumentsAreThoseOfTheFigures(t *testing.T) {
	r, i, err := readFigures("results")
	expect.NoError(t, err)
	read := func(path string) string { return string(expect.Value(os.ReadFile(path))(t)) }
	want := expect.Value(documents(r, i, read("../README.md")))(t)
	want["bench/results/results.md"] = r.markdown()
	for path, text := range want {
		expect.That(t, read(filepath.Join("..", path)) == text, "%s is not that of the figures: run go run . -from-results -docs ..", path)
	}
}
