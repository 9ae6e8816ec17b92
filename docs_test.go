package cni_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/embedcni/cni/internal/expect"
)

// public are the directories of the packages that users import.
var public = []string{".", "cnitest", "etcfiles", "guard", "netconf", "netns", "outcome", "plugin", "reconcile",
	"thick/backend", "thick/kube", "thick/metrics", "thick/multinet", "thick/server", "thick/shim"}

// parsed returns the files of a package, without or with only its tests.
func parsed(t *testing.T, set *token.FileSet, dir string, tests bool) (files []*ast.File) {
	t.Helper()
	for _, name := range expect.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t) {
		if strings.HasSuffix(name, "_test.go") == tests {
			files = append(files, expect.Value(parser.ParseFile(set, name, nil, parser.ParseComments))(t))
		}
	}
	return files
}

// TestExportedDocumentationCitesNothingUnexported: a name that a reader of go doc
// cannot look up explains nothing.
func TestExportedDocumentationCitesNothingUnexported(t *testing.T) {
	for _, dir := range public {
		set := token.NewFileSet()
		files := parsed(t, set, dir, false)
		hidden := unexported(files)
		docs := exportedDocs(expect.Value(doc.NewFromFiles(set, files, dir))(t))
		expect.Must(t, (dir != "." || hidden["newNamespace"]) && len(docs) >= 2, "%s: %d unexported names, %d comments", dir, len(hidden), len(docs))
		for of, text := range docs {
			for _, cited := range cites(text, hidden) {
				t.Errorf("%s: the documentation of %s cites %s, which is not exported", dir, of, cited)
			}
		}
	}
}

// TestNoExportedNameShowsAnInternalOne: in a signature, an exported field, an alias or a value,
// a name of an internal package is one that a user can neither read about nor write.
func TestNoExportedNameShowsAnInternalOne(t *testing.T) {
	for _, dir := range public {
		set := token.NewFileSet()
		for _, shown := range internalNames(t, set, parsed(t, set, dir, false)) {
			t.Errorf("%s: %s", dir, shown)
		}
	}
}

func TestInternalNamesAreFound(t *testing.T) {
	const imports = `package p; import ("x/internal/inner"; other "x/internal/second"; "x/outer");`
	for source, want := range map[string]string{
		"type T = inner.T":                                  "x.go:1: inner.T",
		"const C = other.C":                                 "x.go:1: other.C",
		"var V inner.T":                                     "x.go:1: inner.T",
		"func F(f func() other.T)":                          "x.go:1: other.T",
		"type T struct { F []inner.T }":                     "x.go:1: inner.T",
		"type T struct { f inner.T }; func (T) M() inner.T": "x.go:1: inner.T",
		"type t = inner.T; var v = other.V":                 "",
		"func F() outer.T { return outer.T(inner.F()) }":    "",
		"var V = outer.Make(func() { inner.F() })":          "",
	} {
		set := token.NewFileSet()
		file := expect.Value(parser.ParseFile(set, "x.go", imports+source, 0))(t)
		expect.Same(t, source, strings.Join(internalNames(t, set, []*ast.File{file}), "; "), want)
	}
}

// internalNames returns where the exported declarations of a package show names of internal
// packages.
func internalNames(t *testing.T, set *token.FileSet, files []*ast.File) (found []string) {
	t.Helper()
	internal := map[string]map[string]bool{} // the names of internal packages, by file
	for _, f := range files {
		names := map[string]bool{}
		for _, i := range f.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			name := filepath.Base(path)
			if i.Name != nil {
				name = i.Name.Name
			}
			names[name] = slices.Contains(strings.Split(path, "/"), "internal")
		}
		internal[set.Position(f.Pos()).Filename] = names
	}
	look := func(decl ast.Node) {
		ast.Inspect(decl, func(n ast.Node) bool {
			if _, ok := n.(*ast.BlockStmt); ok {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok {
				at := set.Position(s.Pos())
				if x, ok := s.X.(*ast.Ident); ok && internal[at.Filename][x.Name] {
					found = append(found, fmt.Sprintf("%s:%d: %s.%s", at.Filename, at.Line, x.Name, s.Sel.Name))
				}
			}
			return true
		})
	}
	for _, f := range files {
		ast.FileExports(f)
		for _, decl := range f.Decls {
			look(decl)
		}
	}
	return found
}

func TestCitesFindsNames(t *testing.T) {
	got := cites("one that contains one of transientWords, or a plain word", map[string]bool{"transientWords": true, "plain": true})
	expect.Same(t, "cited", got, []string{"transientWords"})
}

// unexported returns the unexported names at the package's level, but those of methods.
func unexported(files []*ast.File) map[string]bool {
	names := map[string]bool{}
	note := func(id *ast.Ident) {
		if !id.IsExported() {
			names[id.Name] = true
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					note(d.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						note(s.Name)
					case *ast.ValueSpec:
						for _, id := range s.Names {
							note(id)
						}
					}
				}
			}
		}
	}
	return names
}

// cites returns the names in a text that are no ordinary words.
func cites(text string, names map[string]bool) (found []string) {
	for _, word := range regexp.MustCompile(`[A-Za-z0-9_]+`).FindAllString(text, -1) {
		if names[word] && strings.IndexFunc(word, unicode.IsUpper) > 0 {
			found = append(found, word)
		}
	}
	return found
}

// exportedDocs returns the comments that go doc prints, by the name they belong to.
func exportedDocs(p *doc.Package) map[string]string {
	docs := map[string]string{p.Name: p.Doc}
	values := func(all []*doc.Value) {
		for _, v := range all {
			docs[strings.Join(v.Names, ", ")] = v.Doc + comments(v.Decl)
		}
	}
	funcs := func(of string, all []*doc.Func) {
		for _, f := range all {
			docs[of+f.Name] = f.Doc
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, typ := range p.Types {
		docs[typ.Name] = typ.Doc + comments(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return docs
}

// comments returns the comments of exported fields and values in a declaration.
func comments(decl *ast.GenDecl) string {
	var b strings.Builder
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if len(n.Names) > 0 && !n.Names[0].IsExported() {
				return false
			}
			b.WriteString(n.Doc.Text() + n.Comment.Text())
		case *ast.ValueSpec:
			b.WriteString(n.Doc.Text() + n.Comment.Text())
		}
		return true
	})
	return b.String()
}

// TestLinksInCommentsLeadSomewhere: go doc leaves the brackets around a name that it cannot find.
func TestLinksInCommentsLeadSomewhere(t *testing.T) {
	stays := regexp.MustCompile(`\[\*?[A-Z][A-Za-z.]*\]`)
	for _, dir := range public {
		set := token.NewFileSet()
		p := expect.Value(doc.NewFromFiles(set, parsed(t, set, dir, false), dir))(t)
		for of, text := range exportedDocs(p) {
			expect.That(t, !stays.Match(p.Text(text)), "%s: %s: %s leads nowhere", dir, of, stays.Find(p.Text(text)))
		}
	}
}

// TestThePackageCommentNamesEachVerbAndOption, in one of its groups.
func TestThePackageCommentNamesEachVerbAndOption(t *testing.T) {
	set := token.NewFileSet()
	text := expect.Value(doc.NewFromFiles(set, parsed(t, set, ".", false), "."))(t).Doc
	for _, f := range parsed(t, set, ".", false) {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || !d.Name.IsExported() || strings.Contains(d.Doc.Text(), "Deprecated:") {
				continue
			}
			name := d.Name.Name
			switch star, _ := receiver(d).(*ast.StarExpr); {
			case star != nil && star.X.(*ast.Ident).Name == "Runtime":
				name = "Runtime." + name
			case d.Recv != nil || !strings.HasPrefix(name, "With"):
				continue
			}
			expect.That(t, strings.Contains(text, "["+name+"]"), "doc.go does not name %s", name)
		}
	}
}

func receiver(d *ast.FuncDecl) ast.Expr {
	if d.Recv == nil {
		return nil
	}
	return d.Recv.List[0].Type
}

// TestEachVerbHasAnExample, by its name, so that go doc shows it there.
func TestEachVerbHasAnExample(t *testing.T) {
	names, _ := examples(t, ".")
	set := token.NewFileSet()
	for _, typ := range expect.Value(doc.NewFromFiles(set, parsed(t, set, ".", false), "."))(t).Types {
		for _, m := range typ.Methods {
			if typ.Name == "Runtime" && !strings.Contains(m.Doc, "Deprecated:") {
				expect.That(t, names[typ.Name+"_"+m.Name], "there is no ExampleRuntime_%s", m.Name)
			}
		}
	}
}

// TestEachFunctionIsInAnExample of its package.
func TestEachFunctionIsInAnExample(t *testing.T) {
	for _, dir := range public {
		_, calls := examples(t, dir)
		set := token.NewFileSet()
		for _, f := range parsed(t, set, dir, false) {
			for _, decl := range f.Decls {
				if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.IsExported() {
					expect.That(t, calls[d.Name.Name], "%s: no example has %s", dir, d.Name.Name)
				}
			}
		}
	}
}

// examples returns the names of a package's examples, and the names that they use of other
// packages.
func examples(t *testing.T, dir string) (names, uses map[string]bool) {
	t.Helper()
	names, uses = map[string]bool{}, map[string]bool{}
	for _, e := range doc.Examples(parsed(t, token.NewFileSet(), dir, true)...) {
		names[e.Name] = true
		ast.Inspect(e.Code, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				uses[s.Sel.Name] = true
			}
			return true
		})
	}
	return names, uses
}
