package oracle

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	goCNI = "github.com/containerd/go-cni"
	ours  = "github.com/embedcni/cni"
)

// TestAPIHasAllOfGoCNI loads both packages for each platform that importers
// build for, and compares their exports.
func TestAPIHasAllOfGoCNI(t *testing.T) {
	for _, goos := range []string{"linux", "windows", "darwin"} {
		t.Run(goos, func(t *testing.T) {
			before, now := loadAPIs(t, goos)
			for _, problem := range compareAPI(before, now) {
				t.Error(problem)
			}
			if n := len(exportedNames(before)); n < 50 {
				t.Errorf("only %d names compared: go-cni exports more", n)
			}
		})
	}
}

// loadAPIs reads both packages from the go command's export data. One importer
// reads both, so that a third package's type is the same in both.
func loadAPIs(t *testing.T, goos string) (before, now *types.Package) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", goCNI, ours)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
	for path, pkg := range map[string]**types.Package{goCNI: &before, ours: &now} {
		if *pkg, err = imp.Import(path); err != nil {
			t.Fatal(err)
		}
	}
	return before, now
}

// TestAPIComparisonFindsIncompatibleChanges proves that the comparison can
// fail: each line of the doctored package breaks something else.
func TestAPIComparisonFindsIncompatibleChanges(t *testing.T) {
	const before = `package cni
	const Kept, Changed, Typed = "a", 1, 1
	var Err error
	type libcni struct{}
	func (*libcni) Networks() int { return 0 }
	func (*libcni) Gone() {}
	type Opt func(*libcni) error
	type Alias = Opt
	type CNI interface { Setup() error; Load(...Opt) error }
	type Sub struct{}
	func (*Sub) Attach() error { return nil }
	type Swapped struct { A, B int }
	type Tagged struct { A int }
	type Retyped struct { A int32 }
	type Lacking struct { A, B int }
	type Grown struct { A int }
	type GrownWell struct { A int; b string }
	func Missing() {}
	func New(...Opt) (CNI, error) { return nil, nil }
	func Params(a int, b string) error { return nil }
	func Value(*libcni) error { return nil }
	func MadeVariable() {}`
	const now = `package cni
	const Kept, Changed = "a", 2
	const Typed int = 1
	var Err *int
	type config struct{}
	type Runtime struct{}
	func (*Runtime) Networks() string { return "" }
	func (*Runtime) Setup() error { return nil }
	type Opt func(*config) error
	type Alias = func(*config) error
	type CNI interface { Setup() error; Load(...Opt) error; More() }
	type Sub struct{}
	func (*Sub) Attach() {}
	type Swapped struct { B, A int }
	type Tagged struct { A int "json:\"a\"" }
	type Retyped struct { A int64 }
	type Lacking struct { A int }
	type Grown struct { A int; More int }
	type GrownWell struct { A int; More int "json:\",omitempty\"" }
	func New(...Opt) (*Runtime, error) { return nil, nil }
	func Params(a int, b []byte) error { return nil }
	func Value(*config) error { return nil }
	var MadeVariable = func() {}`
	want := []string{
		"Alias: Opt became func(*config) error",
		"CNI: interface has methods [Load More Setup], not [Load Setup]",
		"Changed: constant 1 became 2",
		"Err: error became *int",
		"Grown: new field More is not left out of JSON when it is empty",
		"Lacking: field B is missing",
		"MadeVariable: func became var",
		"Missing: missing",
		"New: result CNI became *Runtime",
		"Params: func(a int, b string) error became func(a int, b []byte) error",
		"Retyped: field A: int32 became int64",
		"Runtime.Gone: missing",
		"Runtime.Networks: result int became string",
		"Sub.Attach: func() error became func()",
		"Swapped: field A stands before B no longer",
		`Tagged: field A: JSON key "A" became "a"`,
		"Typed: untyped int became int",
	}
	got := compareAPI(parseAPI(t, "before", before), parseAPI(t, "now", now))
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAPIComparisonAcceptsTheSame: otherwise a comparison that always complains
// would pass the previous test.
func TestAPIComparisonAcceptsTheSame(t *testing.T) {
	const source = `package cni
	const C = 1
	type %s struct{}
	type Opt func(*%[1]s) error
	type CNI interface { Load(...Opt) error }
	type Runtime struct{}
	func (*Runtime) Load(...Opt) error { return nil }
	func New(...Opt) (%[2]s, error) { return nil, nil }
	func Lo(*%[1]s) error { return nil }`
	before := parseAPI(t, "before", fmt.Sprintf(source, "libcni", "CNI"))
	now := parseAPI(t, "now", fmt.Sprintf(source, "config", "*Runtime"))
	if got := compareAPI(before, now); len(got) > 0 {
		t.Errorf("found %q, want nothing", got)
	}
}

func parseAPI(t *testing.T, path, source string) *types.Package {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path+".go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{}).Check(path, fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}
