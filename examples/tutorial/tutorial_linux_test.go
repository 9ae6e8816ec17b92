package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m, sandbox.Before(download))) }

// download has the go command fetch what the reader's go get will need, while there is a network.
func download() (none []string, err error) {
	dir, err := os.MkdirTemp("", "tutorial")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	for _, command := range []string{"go mod init tutorial", replace + root, "go get github.com/embedcni/cni@v0.0.0"} {
		words := strings.Fields(command)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", command, err, out)
		}
	}
	return nil, nil
}

// replace has the module be this tree.
const replace = "go mod edit -replace github.com/embedcni/cni="

const page = "../../docs/tutorial.md"

// A block is a fenced block of the page: what a reader types, or what is printed then.
type block struct {
	line       int
	kind, file string // "```go main.go" has the kind go and the file main.go
	text       string
}

var fence = regexp.MustCompile("(?ms)^```([a-z]+)( [a-z.]+)?\n(.*?)^```$")

// TestTutorial does what docs/tutorial.md says, in a shell, and compares what is printed.
func TestTutorial(t *testing.T) {
	blocks := read(t)
	root := expect.Value(filepath.Abs("../.."))(t)
	dir := t.TempDir()
	outside, inside, wanted := session(t, blocks, dir, root)
	expect.NoError(t, os.WriteFile(dir+"/outside.sh", []byte(outside), 0o600), os.WriteFile(dir+"/inside.sh", []byte(inside), 0o600))

	cmd := exec.CommandContext(t.Context(), "sh", "-e", "outside.sh")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
	var printed, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &said
	err := cmd.Run()
	t.Logf("stderr:\n%s", said.String())
	expect.NoError(t, err)
	expect.Same(t, "printed", printed.String(), wanted)
}

// TestTheFinishedProgramIsHere compares the files of this directory with those of the page.
func TestTheFinishedProgramIsHere(t *testing.T) {
	typed := map[string]string{}
	for _, b := range read(t) {
		b.typeInto(t, typed)
	}
	here := map[string]string{}
	for _, name := range expect.Value(filepath.Glob("*.go"))(t) {
		if !strings.HasSuffix(name, "_test.go") {
			here[name] = string(expect.Value(os.ReadFile(name))(t))
		}
	}
	// The copy in the tree says what it is, in front.
	if _, program, ok := strings.Cut(here["main.go"], "\npackage main\n"); ok {
		here["main.go"] = "package main\n" + program
	}
	expect.Same(t, "files", here, typed)
}

// read returns the blocks of the page. Each is of a kind that session knows, so that none
// is left out.
func read(t *testing.T) (blocks []block) {
	t.Helper()
	text := string(expect.Value(os.ReadFile(page))(t))
	for _, at := range fence.FindAllStringSubmatchIndex(text, -1) {
		b := block{line: 1 + strings.Count(text[:at[0]], "\n"), kind: text[at[2]:at[3]], text: text[at[6]:at[7]]}
		if at[4] >= 0 {
			b.file = text[at[4]+1 : at[5]]
		}
		blocks = append(blocks, b)
	}
	expect.Must(t, len(blocks) > 30 && 2*len(blocks) == strings.Count("\n"+text, "\n```"), "%s: %d blocks were found, and not all", page, len(blocks))
	return blocks
}

// session returns the scripts of the shell that the reader begins in, and of the one in
// namespaces of its own, and what they print.
func session(t *testing.T, blocks []block, dir, root string) (outside, inside, wanted string) {
	t.Helper()
	files := map[string]string{}
	scripts := []string{"", ""}
	shell := 0
	run := func(line string) { scripts[shell] += line + "\n" }
	for n, b := range blocks {
		switch b.kind {
		case "go", "diff":
			b.typeInto(t, files)
			typed := fmt.Sprintf("%s/typed-%d", dir, n)
			expect.NoError(t, os.WriteFile(typed, []byte(files[b.file]), 0o600))
			run("cp " + typed + " " + b.file)
		case "sh":
			heading := fmt.Sprintf("%s:%d", page, b.line)
			run("echo " + heading)
			wanted += heading + "\n"
			for line := range strings.Lines(b.text) {
				line = strings.TrimSuffix(line, "\n")
				switch {
				case strings.HasPrefix(line, "unshare "): // the rest goes to the shell that it starts
					run(line + " sh -e " + dir + "/inside.sh")
					shell = 1
				case strings.HasPrefix(line, "go mod init "):
					run(line)
					run(replace + root)
				default:
					run(line)
				}
			}
		case "text":
			expect.Must(t, n > 0 && blocks[n-1].kind == "sh", "%s:%d: nothing is run that prints this", page, b.line)
			wanted += b.text
		default:
			t.Fatalf("%s:%d: a block of the kind %s is neither typed nor run", page, b.line, b.kind)
		}
	}
	return scripts[0], scripts[1], wanted
}

// typeInto puts a block's text into its file: the whole of it, or the change.
func (b block) typeInto(t *testing.T, files map[string]string) {
	t.Helper()
	switch b.kind {
	case "go":
		expect.Must(t, files[b.file] == "", "%s:%d: %s is there", page, b.line, b.file)
		files[b.file] = b.text
	case "diff":
		var before, after strings.Builder
		for line := range strings.Lines(b.text) {
			switch mark, rest := line[0], line[1:]; mark {
			case ' ':
				before.WriteString(rest)
				after.WriteString(rest)
			case '-':
				before.WriteString(rest)
			case '+':
				after.WriteString(rest)
			default:
				t.Fatalf("%s:%d: a line begins with neither a blank, - nor +: %s", page, b.line, line)
			}
		}
		found := strings.Count(files[b.file], before.String())
		expect.Must(t, found == 1, "%s:%d: this is %d times in %s, and not once:\n%s\nwhich is\n%s", page, b.line, found, b.file, before.String(), files[b.file])
		files[b.file] = strings.Replace(files[b.file], before.String(), after.String(), 1)
	}
}
