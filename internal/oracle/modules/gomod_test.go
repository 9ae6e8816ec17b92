// Package modules limits the module graphs of this library's importers. Its
// tests run outside of sandboxes, because the go command may have to download
// go.mod files.
package modules

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

const (
	ours  = "github.com/embedcni/cni"
	goCNI = "github.com/containerd/go-cni"
	root  = "../../.."
)

// goLine is the highest go line that importers are forced to: that of this year's importers.
const goLine = "1.25.0"

// goMod is the output of go mod edit -json for a go.mod.
type goMod struct {
	Go, Toolchain string
	Require       []struct{ Path, Version string }
	Tool          []struct{ Path string }
	Replace       []any
}

func readGoMod(t *testing.T, dir string) (m goMod) {
	t.Helper()
	expect.NoError(t, json.Unmarshal([]byte(goCommand(t, dir, nil, "mod", "edit", "-json")), &m))
	return m
}

// goCommand returns the output of the go command in a directory.
func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	// Ignore a workspace and this module's build flags.
	cmd.Env = append(append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0"), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// TestOnlyModulesThatImportersLinkAreRequired: a requirement of a test, a tool or
// a benchmark would be in every importer's module graph.
func TestOnlyModulesThatImportersLinkAreRequired(t *testing.T) {
	m := readGoMod(t, root)
	for _, tool := range m.Tool {
		if !strings.HasPrefix(tool.Path, ours+"/internal/") { // which requires nothing more
			t.Errorf("tool %s: it belongs in a module beside", tool.Path)
		}
	}
	expect.Empty(t, "replacements, which belong in a module beside", m.Replace)
	linked := linkedModules(t)
	for _, r := range m.Require {
		if !linked[r.Path] {
			t.Errorf("%s is required, and no importer links it", r.Path)
		}
	}
}

// linkedModules returns the modules of the packages that importers can import,
// and of everything that these link, on any system.
func linkedModules(t *testing.T) map[string]bool {
	t.Helper()
	linked := map[string]bool{}
	for _, goos := range []string{"linux", "windows", "darwin", "freebsd"} {
		env := []string{"GOOS=" + goos}
		var importable []string
		for line := range strings.Lines(goCommand(t, root, env, "list", "-f", "{{.Name}} {{.ImportPath}}", "./...")) {
			name, path, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name != "main" && !strings.Contains(path, "/internal/") {
				importable = append(importable, path)
			}
		}
		if !slices.Contains(importable, ours) {
			t.Fatalf("%s: importable are %v", goos, importable)
		}
		args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, importable...)
		for line := range strings.Lines(goCommand(t, root, env, args...)) {
			linked[strings.TrimSpace(line)] = true
		}
	}
	return linked
}
