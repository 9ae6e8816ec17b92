package cni

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheErrorsPageHasEveryError that a program can look for, and no other.
func TestTheErrorsPageHasEveryError(t *testing.T) {
	var want []string
	for _, dir := range []string{".", "netns", "netconf", "guard", "reconcile", "plugin", "etcfiles", "cnitest", "thick/server", "thick/backend", "thick/shim", "thick/multinet"} {
		names := errorNames(t, dir)
		expect.That(t, dir != "." || len(names) >= 30, "%s: %q", dir, names)
		for _, name := range names {
			if dir != "." {
				name = filepath.Base(dir) + "." + name
			}
			want = append(want, name)
		}
	}
	page := string(expect.Value(os.ReadFile("docs/errors.md"))(t))
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|").FindAllStringSubmatch(page, -1) {
		if row[1] != "context.DeadlineExceeded" {
			got = append(got, row[1])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	expect.Same(t, "errors in docs/errors.md", got, want)
}

// errorNames returns the exported sentinels and types of errors of a package.
func errorNames(t *testing.T, dir string) (names []string) {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range expect.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t) {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, expect.Value(parser.ParseFile(set, name, nil, parser.ParseComments))(t))
		}
	}
	p := expect.Value(doc.NewFromFiles(set, files, "github.com/embedcni/cni/"+dir))(t)
	for _, v := range p.Vars {
		for _, name := range v.Names {
			if strings.HasPrefix(name, "Err") {
				names = append(names, name)
			}
		}
	}
	for _, typ := range p.Types {
		if strings.HasSuffix(typ.Name, "Error") {
			names = append(names, typ.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestTheErrorsPageIsThatOfTheExamples: its code is compiled, and prints what it says.
func TestTheErrorsPageIsThatOfTheExamples(t *testing.T) {
	page := string(expect.Value(os.ReadFile("docs/errors.md"))(t))
	examples := string(expect.Value(os.ReadFile("example_errors_test.go"))(t))
	blocks := regexp.MustCompile("(?ms)^```(go)?\n(.*?)^```$").FindAllStringSubmatch(page, -1)
	expect.Same(t, "blocks", len(blocks), 3)
	for _, block := range blocks {
		indent := "\t// " // of an example's output
		if block[1] == "go" {
			indent = "\t"
		}
		var lines []string
		for _, line := range strings.Split(strings.TrimSuffix(block[2], "\n"), "\n") {
			lines = append(lines, strings.TrimRight(indent+line, " \t"))
		}
		expect.That(t, strings.Contains(examples, strings.Join(lines, "\n")) || strings.Contains(examples, block[2]),
			"docs/errors.md has code that no example runs:\n%s", block[2])
	}
}
