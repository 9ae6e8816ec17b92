package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// importers is the content of importers.json: the smallest programs that use go-cni or this
// library, and their sizes.
type importers struct {
	Date, Go, Arch string
	Programs       []importer
}

// importer is a program that makes go-cni's seven calls.
type importer struct {
	Contender contender
	Bytes     int64 // of the stripped program
	Modules   int   // beside the standard library
	Packages  int
	Lines     int // of code, without comments and blank lines
	Own       int // those of the library itself
}

// importerSource is the program. Like most daemons it prints and makes text by reflection, so that the
// linker keeps exported methods.
const importerSource = `package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"text/template"

	cni %q
)

func main() {
	c, err := cni.New(%s)
	if err != nil {
		panic(err)
	}
	err = c.Load(cni.WithLoNetwork, cni.WithDefaultConf)
	ctx := context.Background()
	r, err2 := c.Setup(ctx, os.Args[1], os.Args[2])
	fmt.Println(r, err, err2, c.Check(ctx, os.Args[1], os.Args[2]), c.Status(), c.GetConfig(), c.Remove(ctx, os.Args[1], ""))
	fmt.Println(reflect.ValueOf(c).MethodByName(os.Args[3]), template.Must(template.New("").Parse(os.Args[4])).Execute(os.Stdout, c))
}
`

// weigh builds the programs in the module of the working directory, which requires both
// libraries.
func weigh(ctx context.Context) (_ *importers, err error) {
	dir, err := os.MkdirTemp("", "bench-importer-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	found := &importers{Date: time.Now().UTC().Format(time.DateOnly), Go: runtime.Version(), Arch: runtime.GOARCH}
	for _, p := range []struct {
		contender contender
		path, opt string
	}{
		{goCNI, "github.com/containerd/go-cni", ""},
		{oneLine, "github.com/embedcni/cni", ""},
		{ours, "github.com/embedcni/cni", "cni.WithBuiltinPlugins()"},
	} {
		file := filepath.Join(dir, "main.go")
		if err := os.WriteFile(file, fmt.Appendf(nil, importerSource, p.path, p.opt), 0o644); err != nil {
			return nil, err
		}
		one := importer{Contender: p.contender}
		if one.Bytes, err = linkedBytes(ctx, file); err != nil {
			return nil, err
		}
		if err := one.count(ctx, file, p.path); err != nil {
			return nil, err
		}
		found.Programs = append(found.Programs, one)
	}
	return found, nil
}

// goCommand runs the go command and returns its output.
func goCommand(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	var out, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, stderr.String())
	}
	return out.String(), nil
}

func linkedBytes(ctx context.Context, file string) (int64, error) {
	program := strings.TrimSuffix(file, ".go")
	if _, err := goCommand(ctx, "build", "-trimpath", "-ldflags=-s -w", "-o", program, file); err != nil {
		return 0, err
	}
	info, err := os.Stat(program)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// count counts the modules, packages and lines that the program links, and the lines of library.
func (p *importer) count(ctx context.Context, file, library string) error {
	out, err := goCommand(ctx, "list", "-deps", "-json=ImportPath,Standard,Dir,GoFiles,Module", file)
	if err != nil {
		return err
	}
	modules := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var one struct {
			Standard bool
			Dir      string
			GoFiles  []string
			Module   *struct{ Path string }
		}
		if err := dec.Decode(&one); errors.Is(err, io.EOF) {
			p.Modules = len(modules)
			return nil
		} else if err != nil {
			return err
		}
		if one.Standard || one.Module == nil { // the program itself is in no module
			continue
		}
		modules[one.Module.Path] = true
		p.Packages++
		for _, name := range one.GoFiles {
			source, err := os.ReadFile(filepath.Join(one.Dir, name))
			if err != nil {
				return err
			}
			lines := codeLines(source)
			p.Lines += lines
			if one.Module.Path == library {
				p.Own += lines
			}
		}
	}
}

// codeLines returns the number of lines that have code.
func codeLines(source []byte) int {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(source))
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && text == "\n" { // the scanner's own
			continue
		}
		first := file.Line(pos)
		for n := range strings.Count(text, "\n") + 1 {
			lines[first+n] = true
		}
	}
}

// find returns a contender's program, or nil.
func (i *importers) find(c contender) *importer {
	n := slices.IndexFunc(i.Programs, func(p importer) bool { return p.Contender == c })
	if n < 0 {
		return nil
	}
	return &i.Programs[n]
}

// size returns the size of a contender's program.
func (i *importers) size(c contender) string {
	p := i.find(c)
	if p == nil {
		return "–"
	}
	return megabytes(p.Bytes)
}

// markdown returns the table of the programs.
func (i *importers) markdown() string {
	var b strings.Builder
	var rows [][]string
	for _, p := range i.Programs {
		rows = append(rows, []string{p.Contender.String(), megabytes(p.Bytes), grown(p.Bytes, i.Programs[0].Bytes),
			thousands(p.Own), thousands(p.Lines), thousands(p.Packages), thousands(p.Modules)})
	}
	table(&b, []string{"", "bytes", "more than go-cni", "lines of the library", "with its dependencies", "packages", "modules"}, rows)
	fmt.Fprintf(&b, "\nThe program makes go-cni's seven calls and is stripped (linux/%s, %s, %s). Lines are those of code, "+
		"without comments; the standard library does not count.\n", i.Arch, i.Go, i.Date)
	return b.String()
}

func grown(bytes, from int64) string {
	if bytes == from {
		return "–"
	}
	return megabytes(bytes - from)
}

func megabytes(n int64) string { return digits(float64(n)/1e6) + " MB" }
