package cni_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// numbersDocument has a line for each duty, fault and figure.
const numbersDocument = "docs/duties-faults-figures.md"

// TestFigure_M11_EveryNumberHasATestAndALine: the document and the tests agree
// on the numbers and on the packages that have tests of each.
func TestFigure_M11_EveryNumberHasATestAndALine(t *testing.T) {
	lines := numberLines(t, string(expect.Value(os.ReadFile(numbersDocument))(t)))
	tested := testedNumbers(t)
	for number, packages := range tested {
		expect.That(t, lines[number] != "", "%s names tests of %v, and has no line in %s", number, packages, numbersDocument)
	}
	for number, line := range lines {
		switch got := strings.Join(tested[number], ", "); {
		case line == "not yet" || line == "not ours":
			expect.Same(t, number+" is marked "+line+", and has tests in", got, "")
		case got != line:
			t.Errorf("%s has tests in %q, the document says %q", number, got, line)
		}
	}
}

var numberLine = regexp.MustCompile(`(?m)^\| ([RFM][1-9][0-9]*) \|.*\| ([^|]+) \|$`)

// numberLines returns the last cell of each number's line:
//
//	| F13 | A deadline passes … | `behaviour`, `invoke` |
func numberLines(t *testing.T, document string) map[string]string {
	t.Helper()
	lines := map[string]string{}
	highest := map[byte]int{}
	for _, m := range numberLine.FindAllStringSubmatch(document, -1) {
		number := m[1]
		n, err := strconv.Atoi(number[1:])
		expect.That(t, err == nil && n == highest[number[0]]+1, "%s: %s does not follow the number before: %v", numbersDocument, number, err)
		highest[number[0]] = n
		lines[number] = strings.ReplaceAll(m[2], "`", "")
	}
	expect.Must(t, len(highest) == 3, "%s has numbers up to %v", numbersDocument, highest)
	return lines
}

// testedNumbers returns the packages that have tests of each number, the root
// first.
func testedNumbers(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string]map[string]bool{}
	expect.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "internal/")
		for _, number := range numbersIn(t, path, string(source)) {
			if found[number] == nil {
				found[number] = map[string]bool{}
			}
			found[number][dir] = true
		}
		return nil
	}))
	packages := map[string][]string{}
	for number, dirs := range found {
		packages[number] = slices.Sorted(maps.Keys(dirs))
		if packages[number][0] == "." { // sorts first
			packages[number][0] = "cni"
		}
	}
	return packages
}

var (
	testName     = regexp.MustCompile(`^(Test|Benchmark|Fuzz)`)
	inName       = regexp.MustCompile(`_([A-Z][0-9]+)\b`)
	inTestsTable = regexp.MustCompile(`^([RFM][1-9][0-9]?)([ ,:]|$)`)
)

// numbersIn lists the numbers in the names of tests, and those at the start of
// string literals, as in the rows of a test's table. Fuzz tests belong to M10.
func numbersIn(t *testing.T, path, source string) (numbers []string) {
	t.Helper()
	file := expect.Value(parser.ParseFile(token.NewFileSet(), path, source, 0))(t)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if name := n.Name.Name; n.Recv == nil && testName.MatchString(name) {
				for _, m := range inName.FindAllStringSubmatch(strings.ReplaceAll(name, "_", " _"), -1) {
					numbers = append(numbers, m[1])
				}
				if strings.HasPrefix(name, "Fuzz") {
					numbers = append(numbers, "M10")
				}
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				if m := inTestsTable.FindStringSubmatch(text); m != nil {
					numbers = append(numbers, m[1])
				}
			}
		}
		return true
	})
	return numbers
}

func TestNumbersAreFound(t *testing.T) {
	for source, want := range map[string]string{
		"func TestDuty_R3_F12_IDs() {}":              "[R3 F12]",
		"func TestFault_F05_HalfWritten() {}":        "[F05]",
		"func TestBug_B6_Owners() {}":                "[B6]",
		"func TestIPv4_X() {}":                       "[]",
		"func helper_F3_() {}":                       "[]",
		"func FuzzArgs() {}":                         "[M10]",
		"func TestTable() { _ = []string{`F3, x`} }": "[F3]",
		"func TestTable() { _ = []string{`F3x`} }":   "[]",
		"func TestTable() { t.Run(`M7`, f) }":        "[M7]",
	} {
		expect.Same(t, source, fmt.Sprint(numbersIn(t, "x_test.go", "package x\n"+source)), want)
	}
}
