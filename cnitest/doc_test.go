package cnitest_test

import (
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheDocumentationQuotesWhatRuns: the code in the documentation of the package, and of
// Main, stands so in the tests of a program, which are compiled and run.
func TestTheDocumentationQuotesWhatRuns(t *testing.T) {
	tests := expect.Value(os.ReadFile("../examples/tested/tested_linux_test.go"))(t)
	p := documentation(t)
	text := p.Doc
	for _, f := range p.Funcs {
		if f.Name == "Main" {
			text += "\n\n" + f.Doc
		}
	}
	quoted := 0
	for _, block := range new(comment.Parser).Parse(text).Content {
		code, ok := block.(*comment.Code)
		if !ok {
			continue
		}
		quoted++
		expect.Contains(t, "the tests of examples/tested", string(tests), "\n"+code.Text)
	}
	expect.Same(t, "pieces of code", quoted, 3)
	expect.Contains(t, "the documentation", p.Doc, "func TestMain", "func TestStartAndStop", "func TestStartTriesAgain")
}

// documentation returns that of the package.
func documentation(t *testing.T) *doc.Package {
	t.Helper()
	names := expect.Value(filepath.Glob("*.go"))(t)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := expect.Value(parser.ParseFile(set, name, nil, parser.ParseComments))(t)
		files = append(files, f)
	}
	p := expect.Value(doc.NewFromFiles(set, files, "cnitest"))(t)
	return p
}
