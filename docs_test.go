package cni_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/embedcni/cni/internal/expect"
)

// TestExportedDocumentationCitesNothingUnexported: a name that a reader of go doc
// cannot look up explains nothing.
func TestExportedDocumentationCitesNothingUnexported(t *testing.T) {
	for _, dir := range []string{".", "plugin", "netns", "netconf", "guard", "reconcile", "cnitest"} {
		names := expect.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t)
		set := token.NewFileSet()
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			files = append(files, expect.Value(parser.ParseFile(set, name, nil, parser.ParseComments))(t))
		}
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
