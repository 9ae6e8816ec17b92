package cni_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

const (
	goCNI = "github.com/containerd/go-cni"
	ours  = "github.com/embedcni/cni"
)

// listed holds the fields of go list -json that the import rules need.
type listed struct {
	ImportPath string
	Standard   bool
	Dir        string
	GoFiles    []string
	Imports    []string
}

func goList(t *testing.T, goos string, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Dir,GoFiles,Imports"}, args...)...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	expect.Must(t, err == nil, "%v: %s", err, stderr.String())
	var all []listed
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

var platforms = []string{"linux", "windows", "darwin", "freebsd"}

// within reports whether an import path is one of the parents or below one.
func within(path string, parents ...string) bool {
	return slices.ContainsFunc(parents, func(p string) bool {
		return path == p || strings.HasPrefix(path, p+"/")
	})
}

// testSupport lists the packages that only tests and whole programs may import.
// They may do things that the library may not.
var testSupport = []string{
	ours + "/internal/scripted", ours + "/internal/sandbox", ours + "/internal/audit", ours + "/internal/refplugins",
	ours + "/internal/builtin/plugintest", ours + "/internal/testhost", ours + "/internal/firewalldtest", ours + "/internal/expect", ours + "/internal/nettest",
}

// programs are never linked into a daemon.
var programs = []string{ours + "/examples", ours + "/bench", ours + "/cnitest"}

func TestImportGraphHoldsNothingThatADaemonWouldNotWant(t *testing.T) {
	unwanted := func(path string) bool {
		return within(path, "testing", goCNI, "k8s.io", "sigs.k8s.io", "github.com/containerd") ||
			within(path, testSupport...) || within(path, programs...)
	}
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "-deps", ".") {
			expect.That(t, !unwanted(p.ImportPath), "%s: the package depends on %s", goos, p.ImportPath)
		}
	}
	for _, path := range []string{"testing", "testing/iotest", goCNI, "k8s.io/api", testSupport[0]} {
		expect.That(t, unwanted(path), "the rule lets %s pass", path)
	}
}

func TestInternalPackagesDoNotImportTheRoot(t *testing.T) {
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "./internal/...", "./netns/...") {
			expect.That(t, !slices.Contains(p.Imports, ours) || within(p.ImportPath, ours+"/internal/testhost"),
				"%s: %s imports the root package", goos, p.ImportPath)
		}
	}
}

func TestTestSupportIsImportedByTestsAndProgramsOnly(t *testing.T) {
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "./...") {
			if within(p.ImportPath, testSupport...) || within(p.ImportPath, programs...) {
				continue
			}
			for _, imported := range p.Imports {
				expect.That(t, !within(imported, testSupport...), "%s: %s imports %s", goos, p.ImportPath, imported)
			}
		}
	}
}

// TestOnlyInvokeStartsPlugins: apart from internal/run/invoke only the sweep of the
// firewall starts programs: iptables and its relatives.
func TestOnlyInvokeStartsPlugins(t *testing.T) {
	for _, goos := range platforms {
		var users []string
		for _, p := range goList(t, goos, "./...") {
			if within(p.ImportPath, testSupport...) || within(p.ImportPath, programs...) {
				continue
			}
			if slices.Contains(p.Imports, "os/exec") {
				users = append(users, p.ImportPath)
			}
		}
		want := []string{ours + "/internal/run/invoke"}
		if goos == "linux" {
			want = append([]string{ours + "/internal/kernel/iptables"}, want...)
		}
		expect.Same(t, goos, users, want)
	}
}

// TestOnlyLinksTalksRtnetlink: only internal/kernel/links reads and changes
// interfaces, addresses, routes, neighbours and conntrack. bandwidth uses
// vishvananda/netlink for traffic control, lan for the kernel's numbers.
func TestOnlyLinksTalksRtnetlink(t *testing.T) {
	var importers, users []string
	for _, p := range goList(t, "linux", "./...") {
		if within(p.ImportPath, testSupport...) || within(p.ImportPath, programs...) {
			continue
		}
		if slices.ContainsFunc(p.Imports, func(path string) bool { return within(path, "github.com/vishvananda/netlink") }) {
			importers = append(importers, p.ImportPath)
		}
		for _, name := range p.GoFiles {
			source := expect.Value(os.ReadFile(filepath.Join(p.Dir, name)))(t)
			if strings.Contains(string(source), "NETLINK_ROUTE") && !slices.Contains(users, p.ImportPath) {
				users = append(users, p.ImportPath)
			}
		}
	}
	want := []string{ours + "/internal/builtin/bandwidth", ours + "/internal/builtin/lan", ours + "/internal/kernel/links"}
	expect.That(t, slices.Equal(importers, want), "vishvananda/netlink is imported by %v, want %v", importers, want)
	want = []string{ours + "/internal/builtin/bandwidth", ours + "/internal/kernel/links"}
	expect.That(t, slices.Equal(users, want), "route sockets are opened by %v, want %v", users, want)
}

// TestNothingRunsBeforeNew checks the source: it has no init functions, and
// package variables hold only literals and errors.
func TestNothingRunsBeforeNew(t *testing.T) {
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "-deps", ".") {
			if !within(p.ImportPath, ours) {
				continue
			}
			for _, name := range p.GoFiles {
				source := expect.Value(os.ReadFile(filepath.Join(p.Dir, name)))(t)
				for _, what := range initWork(t, name, string(source)) {
					t.Errorf("%s: %s: %s", goos, p.ImportPath, what)
				}
			}
		}
	}
}

func TestInitWorkIsFound(t *testing.T) {
	for source, want := range map[string]string{
		"func init() {}":                          "x.go: init function",
		"var x = start()":                         "x.go: variable made by start",
		"var x = func() int { return 1 }()":       "x.go: variable made by a function literal",
		"var x = struct{ a int }{os.Getpid()}":    "x.go: variable made by os.Getpid",
		"var ErrX = errors.New(`x`)":              "",
		"var x = func() { go start() }":           "",
		"var _ Doer = (*doer)(nil)":               "",
		"type t struct{}; func (t) init() {}":     "",
		"var x, y = errors.New(`x`), os.Getpid()": "x.go: variable made by os.Getpid",
	} {
		expect.Same(t, source, strings.Join(initWork(t, "x.go", "package x\n"+source), "\n"), want)
	}
}

// initWork lists the code of a file that runs before main.
func initWork(t *testing.T, name, source string) (found []string) {
	t.Helper()
	file := expect.Value(parser.ParseFile(token.NewFileSet(), name, source, 0))(t)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == "init" && d.Recv == nil {
				found = append(found, name+": init function")
			}
		case *ast.GenDecl:
			for _, call := range calls(d) {
				found = append(found, name+": variable made by "+call)
			}
		}
	}
	return found
}

// harmless lists the functions that may initialise package variables: they only
// return a value.
var harmless = []string{"errors.New", "fmt.Errorf"}

// calls returns the functions that a declaration calls. It skips function
// literals, which run only when they are called.
func calls(d *ast.GenDecl) (found []string) {
	if d.Tok != token.VAR {
		return nil
	}
	ast.Inspect(d, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			_, literal := n.(*ast.FuncLit)
			return !literal
		}
		switch f := call.Fun.(type) {
		case *ast.Ident:
			found = append(found, f.Name)
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && !slices.Contains(harmless, x.Name+"."+f.Sel.Name) {
				found = append(found, x.Name+"."+f.Sel.Name)
			}
		case *ast.FuncLit:
			found = append(found, "a function literal")
		}
		return true
	})
	return found
}
