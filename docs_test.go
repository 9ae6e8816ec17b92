package cni

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/embedcni/cni/internal/expect"
)

// TestExportedDocumentationCitesNothingUnexported: a name that a reader of go doc
// cannot look up explains nothing.
func TestExportedDocumentationCitesNothingUnexported(t *testing.T) {
	for _, dir := range []string{".", "plugin", "netns", "cnitest"} {
		parsed, err := parser.ParseDir(token.NewFileSet(), dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, parser.ParseComments)
		expect.NoError(t, err)
		for name, pkg := range parsed {
			hidden := unexported(pkg)
			docs := exportedDocs(doc.New(pkg, name, 0))
			if len(hidden) == 0 && dir == "." || len(docs) == 0 {
				t.Fatalf("%s: %d unexported names, %d comments", dir, len(hidden), len(docs))
			}
			for of, text := range docs {
				for _, cited := range cites(text, hidden) {
					t.Errorf("%s: the documentation of %s cites %s, which is not exported", dir, of, cited)
				}
			}
		}
	}
}

func TestCitesFindsNames(t *testing.T) {
	got := cites("one that contains one of transientWords, or a plain word", map[string]bool{"transientWords": true, "plain": true})
	expect.Same(t, "cited", got, []string{"transientWords"})
}

// unexported returns the unexported names at the package's level that are no ordinary
// word: they have a capital in the middle.
func unexported(pkg *ast.Package) map[string]bool {
	names := map[string]bool{}
	for _, f := range pkg.Files {
		for name := range f.Scope.Objects {
			if !ast.IsExported(name) {
				names[name] = true
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
