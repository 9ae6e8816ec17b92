package cni_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// documented are the packages that documents name, by their names.
var documented = map[string]string{
	"cni": ".", "netns": "netns", "netconf": "netconf", "guard": "guard", "reconcile": "reconcile", "cnitest": "cnitest",
	"plugin": "plugin", "etcfiles": "etcfiles", "server": "thick/server", "backend": "thick/backend", "shim": "thick/shim",
	"multinet": "thick/multinet", "kube": "thick/kube", "metrics": "thick/metrics",
}

// presentDocuments returns what the documents say about the present, by their paths.
func presentDocuments(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md"} {
		for _, file := range expect.Value(filepath.Glob(pattern))(t) {
			texts[filepath.ToSlash(file)] = string(expect.Value(os.ReadFile(file))(t))
		}
	}
	texts["CHANGELOG.md"] = presentNames(texts["CHANGELOG.md"])
	return texts
}

// presentNames drops what is no longer there: in the tables of what moved and what left, all
// but the last cell.
func presentNames(changelog string) string {
	var b strings.Builder
	section := ""
	for line := range strings.Lines(changelog) {
		if strings.HasPrefix(line, "#") {
			section = strings.TrimSpace(strings.TrimLeft(line, "# "))
		}
		if cells := strings.Split(line, "|"); len(cells) > 2 && (section == "Moved" || section == "Left") {
			line = cells[len(cells)-2] + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// TestDocumentsNameWhatExists: packages, files, and exported names.
func TestDocumentsNameWhatExists(t *testing.T) {
	known := exportedNames(t)
	for file, text := range presentDocuments(t) {
		for _, wrong := range known.unknown(text) {
			t.Errorf("%s names %s, which does not exist", file, wrong)
		}
		for _, wrong := range missingPaths(t, text) {
			t.Errorf("%s names the path %s, which does not exist", file, wrong)
		}
	}
}

func TestUnknownNamesAreFound(t *testing.T) {
	known := names{"cni.New": true, "cni.Runtime": true, "cni.Runtime.Setup": true, "cni.WithOwner": true, "cni.Report": true, "cni.Report.Kept": true, "guard.Run": true}
	for text, want := range map[string]string{
		"cni.New, guard.Run(ctx) and `rt.Setup`":   "",
		"cni.Old":                                  "cni.Old",
		"err = rt.Guard(ctx)":                      "rt.Guard",
		"`cni.Runtime.Setup` or cni.Runtime.Sweep": "cni.Runtime.Sweep",
		"`WithOwner` and `WithOther`":              "WithOther",
		"`Report.Kept` and `Report.Lost`":          "Report.Lost",
		"Report.Lost in a sentence, os.Exit":       "",
		"ErrGone":                                  "ErrGone",
	} {
		expect.Same(t, text, strings.Join(known.unknown(text), " "), want)
	}
	expect.Same(t, "paths", missingPaths(t, "`internal/store/*`, `docs/nothing.md`, internal/gone and `/etc/cni`"), []string{"docs/nothing.md"})
	expect.Same(t, "names", presentNames("a cni.A\n### Left\n| `cni.B` | `cni.C` |\n### Changed\ncni.D\n"), "a cni.A\n### Left\n `cni.C` \n### Changed\ncni.D\n")
}

// TestEveryPageIsInTheIndex: docs/README.md links each page beside it.
func TestEveryPageIsInTheIndex(t *testing.T) {
	index := string(expect.Value(os.ReadFile("docs/README.md"))(t))
	for _, file := range expect.Value(filepath.Glob("docs/*.md"))(t) {
		name := filepath.Base(file)
		expect.That(t, name == "README.md" || strings.Contains(index, "]("+name+")"), "docs/README.md does not link %s", name)
	}
}

// names are exported names as package.Name, and their fields and methods as
// package.Name.Member.
type names map[string]bool

var (
	qualified = regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	bare      = regexp.MustCompile(`(?:^|[^.\w])((?:With|Err)[A-Z]\w*)`)
	member    = regexp.MustCompile(`^\*?([A-Z]\w*)\.([A-Z]\w*)$`)
	tag       = regexp.MustCompile(`/v\d+\.\d+\.\d+$`) // of a module
	span      = regexp.MustCompile("`([^`\n]+)`")
)

// unknown returns the names in a text that do not exist.
func (n names) unknown(text string) (wrong []string) {
	for _, m := range qualified.FindAllStringSubmatch(text, -1) {
		name := m[1] + "." + m[2]
		switch {
		case m[1] == "rt":
			if !n["cni.Runtime."+m[2]] {
				wrong = append(wrong, name)
			}
		case documented[m[1]] == "":
		case m[3] == "" && !n[name], m[3] != "" && !n[name+"."+m[3]]:
			wrong = append(wrong, strings.TrimRight(name+"."+m[3], "."))
		}
	}
	for _, m := range bare.FindAllStringSubmatch(text, -1) {
		if !n.somewhere(m[1]) {
			wrong = append(wrong, m[1])
		}
	}
	for _, s := range span.FindAllStringSubmatch(text, -1) {
		if m := member.FindStringSubmatch(s[1]); m != nil && !n.somewhere(m[1]+"."+m[2]) {
			wrong = append(wrong, m[0])
		}
	}
	return wrong
}

// somewhere reports whether a package has the name.
func (n names) somewhere(name string) bool {
	for pkg := range documented {
		if n[pkg+"."+name] {
			return true
		}
	}
	return false
}

// missingPaths returns the paths in backquotes that begin with a directory of the repository
// and lead nowhere.
func missingPaths(t *testing.T, text string) (missing []string) {
	t.Helper()
	for _, s := range span.FindAllStringSubmatch(text, -1) {
		name := strings.TrimSuffix(strings.TrimPrefix(s[1], ours+"/"), "/...")
		first, _, deep := strings.Cut(name, "/")
		if info, err := os.Stat(first); !deep || err != nil || !info.IsDir() || strings.ContainsAny(name, " …(") || tag.MatchString(name) {
			continue
		}
		if found := expect.Value(filepath.Glob(name))(t); len(found) == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}

// exportedNames reads the sources of the documented packages.
func exportedNames(t *testing.T) names {
	t.Helper()
	n := names{}
	for pkg, dir := range documented {
		n.read(t, pkg, dir)
	}
	return n
}

// read adds the names of a package, for every system.
func (n names) read(t *testing.T, pkg, dir string) {
	t.Helper()
	set := token.NewFileSet()
	for _, name := range expect.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := expect.Value(parser.ParseFile(set, name, nil, parser.SkipObjectResolution))(t)
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				n[pkg+"."+receiverOf(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					n.declare(t, pkg, file, spec)
				}
			}
		}
	}
}

func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if name, ok := typ.(*ast.Ident); ok {
		return name.Name + "."
	}
	return "?."
}

// declare adds the names of a declaration. An alias has the members of its type.
func (n names) declare(t *testing.T, pkg string, file *ast.File, spec ast.Spec) {
	t.Helper()
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, id := range s.Names {
			n[pkg+"."+id.Name] = true
		}
	case *ast.TypeSpec:
		name := pkg + "." + s.Name.Name
		n[name] = true
		switch typ := s.Type.(type) {
		case *ast.StructType:
			n.members(name, typ.Fields)
		case *ast.InterfaceType:
			n.members(name, typ.Methods)
		case *ast.SelectorExpr:
			n.alias(t, name, typ, file)
		}
	}
}

func (n names) members(of string, fields *ast.FieldList) {
	for _, field := range fields.List {
		for _, id := range field.Names {
			n[of+"."+id.Name] = true
		}
	}
}

// alias adds the members of a type of another package of this module.
func (n names) alias(t *testing.T, name string, typ *ast.SelectorExpr, file *ast.File) {
	t.Helper()
	from, _ := typ.X.(*ast.Ident)
	at := slices.IndexFunc(file.Imports, func(i *ast.ImportSpec) bool {
		imported := expect.Value(strconv.Unquote(i.Path.Value))(t)
		return from != nil && path.Base(imported) == from.Name && within(imported, ours)
	})
	if at < 0 {
		return
	}
	imported := expect.Value(strconv.Unquote(file.Imports[at].Path.Value))(t)
	theirs := names{}
	theirs.read(t, "", filepath.FromSlash(inModule(imported)))
	for known := range maps.Keys(theirs) {
		if rest, ok := strings.CutPrefix(known, "."+typ.Sel.Name+"."); ok {
			n[name+"."+rest] = true
		}
	}
}
