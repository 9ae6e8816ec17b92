package cni_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// readmeWords is how long the README may be: what a stranger reads before trying.
const readmeWords = 900

func TestReadmeIsShort(t *testing.T) {
	words := len(strings.Fields(string(expect.Value(os.ReadFile("README.md"))(t))))
	expect.That(t, words <= readmeWords, "README.md has %d words, more than %d: docs/ has room", words, readmeWords)
}

// A block is a fenced block of a document.
type block struct {
	file string
	line int    // of its first line
	kind string // the first word behind the fence: go, sh, text, …
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

var fence = regexp.MustCompile("(?ms)^([ ]*)```([a-z]*)[^`\n]*\n(.*?)^[ ]*```$")

func blocksOf(t *testing.T, file string) (blocks []block) {
	t.Helper()
	text := string(expect.Value(os.ReadFile(file))(t))
	for _, at := range fence.FindAllStringSubmatchIndex(text, -1) {
		blocks = append(blocks, block{file, 2 + strings.Count(text[:at[0]], "\n"), text[at[4]:at[5]], text[at[6]:at[7]]})
	}
	return blocks
}

// typedElsewhere has the test that does all that a document says, and fails for a block of a
// kind that it does not know.
var typedElsewhere = map[string]string{"docs/tutorial.md": "examples/tutorial/tutorial_linux_test.go"}

// TestEveryBlockIsTried: a block of Go is a quotation from a file of the tree, or compiles.
// Each command is one that a test runs or this one knows to exist.
func TestEveryBlockIsTried(t *testing.T) {
	tree := readTree(t)
	var compiled []block
	kinds := map[string]int{}
	for _, file := range append([]string{"README.md"}, expect.Value(filepath.Glob("docs/*.md"))(t)...) {
		if test, ok := typedElsewhere[file]; ok {
			expect.Contains(t, test, tree.tests, filepath.Base(file))
			continue
		}
		for _, b := range blocksOf(t, file) {
			kinds[b.kind]++
			switch {
			case b.kind == "go" && !strings.Contains(tree.source, flat(b.text)):
				compiled = append(compiled, b)
			case b.kind == "sh":
				for _, command := range commands(b.text) {
					expect.That(t, tree.knows(command), "%s: no test runs %q", b, command)
				}
			case b.kind == "text" && file == "README.md": // other pages compare their sessions
				expect.That(t, strings.Contains(tree.tests, flat(b.text)), "%s: no test compares this:\n%s", b, b.text)
			}
		}
	}
	expect.Must(t, kinds["go"] > 1 && kinds["sh"] > 1, "blocks that were found: %v", kinds)
	compile(t, compiled)
}

// TestReadmeQuotesAProgram: what a stranger copies first is a whole program, which
// examples/first runs.
func TestReadmeQuotesAProgram(t *testing.T) {
	program := string(expect.Value(os.ReadFile("examples/first/main.go"))(t))
	_, program, _ = strings.Cut(program, "\npackage main\n")
	var got []string
	for _, b := range blocksOf(t, "README.md") {
		if b.kind == "go" {
			got = append(got, b.text)
		}
	}
	expect.Same(t, "programs", got, []string{"package main\n" + program})
}

// tree has what the documents may quote, without the blanks at the ends of lines.
type tree struct {
	source, tests string
	targets       map[string]bool // of the Makefile
}

func readTree(t *testing.T) (all tree) {
	t.Helper()
	var source, tests strings.Builder
	expect.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.WriteString(flat(string(text)))
		if strings.HasSuffix(path, "_test.go") {
			tests.WriteString(flat(string(text)))
		}
		return err
	}))
	all = tree{source.String(), tests.String(), map[string]bool{}}
	makefile := string(expect.Value(os.ReadFile("Makefile"))(t))
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+):( |$)`).FindAllStringSubmatch(makefile, -1) {
		all.targets[m[1]] = true
	}
	return all
}

// flat returns a text's lines without indentation. A quotation has another one.
func flat(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// commands returns the commands of a block, without comments.
func commands(text string) (all []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(" "+line, " #")
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// knows reports whether a command does what it says: the Makefile has its target, a test is
// beside the program that it runs, the package that it names is in the tree, the command
// embedcni has it, or a test quotes it.
func (all tree) knows(command string) bool {
	words := strings.Fields(strings.TrimPrefix(command, "sudo "))
	command = strings.Join(words, " ")
	switch {
	case words[0] == "make" && len(words) > 1:
		return all.targets[words[1]]
	case strings.HasPrefix(command, "go run ./"):
		return hasTests(words[2])
	case strings.HasPrefix(command, "go -C ") && words[len(words)-1] == ".":
		return hasTests(words[2])
	case strings.HasPrefix(command, "(cd ") && len(words) > 3:
		_, err := os.Stat(filepath.Join(words[1], "go.mod"))
		return err == nil && strings.Join(words[2:], " ") == "&& go install .)"
	case words[0] == "embedcni" && len(words) > 1:
		return regexp.MustCompile(`Use:\s+"` + regexp.QuoteMeta(words[1]) + `[ "]`).MatchString(all.source)
	case words[0] == "go" && len(words) > 2 && within(strings.Split(words[2], "@")[0], ours):
		dir, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(words[2], ours), "/"), "@")
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		return err == nil && len(files) > 0
	}
	return strings.Contains(all.tests, command)
}

func hasTests(dir string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return err == nil && len(files) > 0
}

// compile compiles blocks that stand for themselves: whole files, declarations, or statements
// of a function that has the names that a reader expects. What a statement declares need not be
// used.
func compile(t *testing.T, blocks []block) {
	t.Helper()
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	var packages []string
	for n, b := range blocks {
		source, err := program(b)
		expect.Must(t, err == nil, "%s: %v:\n%s", b, err, b.text)
		path := fmt.Sprintf("%s/%d.go", dir, n)
		expect.NoError(t, os.WriteFile(path, []byte(source), 0o600))
		name := fmt.Sprintf("./internal/blocks%d", n)
		overlay.Replace[expect.Value(filepath.Abs(name+"/block.go"))(t)] = path
		packages = append(packages, name)
	}
	if len(blocks) == 0 {
		return
	}
	expect.NoError(t, os.WriteFile(dir+"/overlay.json", expect.Value(json.Marshal(overlay))(t), 0o600))
	out, err := exec.Command("go", append([]string{"build", "-o", dir + "/", "-gcflags=-e", "-overlay", dir + "/overlay.json"}, packages...)...).CombinedOutput()
	wrong := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "declared and not used: ") {
			t.Error(strings.TrimSpace(line))
			wrong++
		}
	}
	expect.That(t, err == nil || len(out) > 0, "go build: %v", err)
}

// program returns a file with the block.
func program(b block) (string, error) {
	at := fmt.Sprintf("//line %s:%d\n%s", filepath.Base(b.file), b.line, b.text)
	if strings.HasPrefix(strings.TrimSpace(b.text), "package ") || strings.Contains(b.text, "\npackage ") {
		return at, nil
	}
	const head, before = "package main\n\nfunc main() {}\n\n", "func _(ctx context.Context, rt *cni.Runtime, id, path string, err error) error {\n{\n"
	var errs []string
	for _, body := range []string{at, before + at + "\n}\nreturn nil\n}\n"} {
		file, err := parser.ParseFile(token.NewFileSet(), "", head+body, 0)
		if err == nil {
			return strings.Replace(head, "\n\n", "\n\n"+imports(file), 1) + body, nil
		}
		errs = append(errs, err.Error())
	}
	return "", fmt.Errorf("neither declarations nor statements: %s", strings.Join(errs, "; "))
}

// known are the packages that a block may use without naming their paths.
var known = []string{
	"context", "encoding/json", "errors", "fmt", "io", "log", "log/slog", "net", "net/http", "net/netip", "os", "os/exec",
	"strings", "testing", "time",
	ours, ours + "/cnitest", ours + "/etcfiles", ours + "/guard", ours + "/netconf", ours + "/netns", ours + "/plugin",
	ours + "/reconcile", ours + "/thick/backend", ours + "/thick/multinet", ours + "/thick/server", ours + "/thick/shim",
}

// imports returns the declaration of the packages that a file uses.
func imports(file *ast.File) string {
	used := map[string]bool{}
	for _, id := range file.Unresolved {
		used[id.Name] = true
	}
	var b strings.Builder
	for _, path := range known {
		if used[path[strings.LastIndex(path, "/")+1:]] {
			fmt.Fprintf(&b, "import %q\n", path)
		}
	}
	return b.String()
}

// TestReadmeNamesCallsThatExist: each name in a table or a sentence that looks like Go is one.
func TestReadmeNamesCallsThatExist(t *testing.T) {
	exported := map[string]bool{}
	for _, dir := range []string{".", "cnitest", "guard", "netconf", "reconcile"} {
		set := token.NewFileSet()
		var files []*ast.File
		for _, name := range expect.Value(filepath.Glob(dir + "/*.go"))(t) {
			if !strings.HasSuffix(name, "_test.go") {
				files = append(files, expect.Value(parser.ParseFile(set, name, nil, 0))(t))
			}
		}
		prefix := strings.TrimPrefix(dir+".", "..")
		for name := range exportedDocs(expect.Value(doc.NewFromFiles(set, files, ours+"/"+dir))(t)) {
			for name := range strings.SplitSeq(name, ", ") {
				exported[prefix+strings.TrimPrefix(name, "Runtime.")] = true
			}
		}
	}
	names := regexp.MustCompile("`((?:[a-z]+\\.)?[A-Z][A-Za-z]+)`").FindAllStringSubmatch(string(expect.Value(os.ReadFile("README.md"))(t)), -1)
	expect.Must(t, len(names) > 10 && exported["guard.Run"] && exported["Setup"], "names that were found: %v", names)
	for _, m := range names {
		expect.That(t, exported[m[1]], "README.md: there is no %s", m[1])
	}
}

func TestCommandsAreRead(t *testing.T) {
	expect.Same(t, "commands", commands("# first\nmake test   # all of it\n\ngo run \\\n  ./x -n 1#2\n"), []string{"make test", "go run ./x -n 1#2"})
}

func TestCommandsAreKnown(t *testing.T) {
	all := tree{source: `Use: "list [ID]"`, tests: "\nexec.Command(`curl | jq`)\n", targets: map[string]bool{"bench": true}}
	for command, want := range map[string]bool{
		"make bench": true, "sudo make bench": true, "make nothing": false, "make": false,
		"go run ./examples/quickstart -v": true, "go run ./docs": false, "go run ./nowhere": false,
		"go -C examples/faas run .": true, "go -C docs run .": false,
		"(cd gocni && go install .)": true, "(cd docs && go install .)": false, "(cd gocni && rm -r .)": false,
		"go get " + ours + "@v0.1.0": true, "go doc " + ours + "/guard": true, "go doc " + ours + "/nothing": false,
		"embedcni list": true, "embedcni lis": false, "curl | jq": true, "ls": false,
	} {
		expect.Same(t, command, all.knows(command), want)
	}
}

func TestProgramsAreMade(t *testing.T) {
	for text, want := range map[string]string{
		"fmt.Println(rt)\n":           "import \"context\"\nimport \"fmt\"\nimport \"" + ours + "\"\n",
		"func f() { log.Print() }\n":  "import \"log\"\n",
		"context := 1\n_ = context\n": "import \"context\"\nimport \"" + ours + "\"\n",
	} {
		source := expect.Value(program(block{file: "x.md", line: 1, text: text}))(t)
		var got []string
		for line := range strings.Lines(source) {
			if strings.HasPrefix(line, "import ") {
				got = append(got, line)
			}
		}
		expect.Same(t, text, strings.Join(got, ""), want)
	}
	_, err := program(block{text: "if {"})
	expect.Fails(t, "a block that is no Go", err)
	expect.That(t, slices.Contains(known, "fmt"), "fmt is known")
}
