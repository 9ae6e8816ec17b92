// Package modules limits the module graphs of this library's importers. Its
// tests run outside of sandboxes, because the go command may have to download
// go.mod files.
package modules

import (
	"encoding/json"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
	expect.Must(t, err == nil, "go %s: %v: %s", strings.Join(args, " "), err, stderr.String())
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
		expect.That(t, linked[r.Path], "%s is required, and no importer links it", r.Path)
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
		expect.Must(t, slices.Contains(importable, ours), "%s: importable are %v", goos, importable)
		args := append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, importable...)
		for line := range strings.Lines(goCommand(t, root, env, args...)) {
			linked[strings.TrimSpace(line)] = true
		}
	}
	return linked
}

// TestCompat_21_ModuleGraphOfAnImporter compares the module graph of a small
// program before and after its import line changes. Only the listed modules may
// rise, and no other may be added.
func TestCompat_21_ModuleGraphOfAnImporter(t *testing.T) {
	before, goBefore := graphOf(t, importer(t, goCNI, "v1.1.14", ""))
	after, goAfter := graphOf(t, importer(t, ours, "v0.0.0", absolute(t, root)))
	new := map[string]string{
		ours:                             "the import line",
		"github.com/coreos/go-iptables":  "the chains of the plugin firewall",
		"github.com/fsnotify/fsnotify":   "changes of configuration files",
		"github.com/godbus/dbus/v5":      "firewalld, for the plugin firewall",
		"github.com/vishvananda/netlink": "links, addresses and routes",
	}
	rises := map[string]string{
		"github.com/vishvananda/netns": "vishvananda/netlink v1.3.1 requires v0.0.5",
		"golang.org/x/sys":             "godbus/dbus v5.2.4 requires it",
	}
	for path, is := range after {
		was, known := before[path]
		switch {
		case !known && new[path] == "":
			t.Errorf("%s %s is new to the importer", path, is)
		case known && newer(is, was) && rises[path] == "":
			t.Errorf("%s rises from %s to %s", path, was, is)
		case known && !newer(is, was) && rises[path] != "", known && new[path] != "":
			t.Errorf("%s was %s and is %s: take it off the list", path, was, is)
		}
	}
	expect.That(t, version.Compare("go"+goBefore, "go"+goLine) <= 0 && goAfter == goLine,
		"the go line was %s and is %s, want %s", goBefore, goAfter, goLine)
	expect.That(t, len(before) >= 20 && before[goCNI] != "" && after[goCNI] == "",
		"this compares too little: %d modules before, %d after", len(before), len(after))
}

// importer makes the program's module in its own directory. With this library the program
// is built; go-cni's is there for its module graph alone.
func importer(t *testing.T, path, v, dir string) string {
	t.Helper()
	source := expect.Value(os.ReadFile("testdata/importer/main.go"))(t)
	expect.Must(t, strings.Count(string(source), strconv.Quote(goCNI)) == 1, "the program has not one import line:\n%s", source)
	module := "module example.org/importer\n\ngo 1.21\n\nrequire " + path + " " + v + "\n"
	if dir != "" {
		module += "\nreplace " + path + " => " + strconv.Quote(dir) + "\n"
	}
	made := t.TempDir()
	for name, content := range map[string]string{
		"main.go": strings.Replace(string(source), strconv.Quote(goCNI), strconv.Quote(path), 1),
		"go.mod":  module,
	} {
		expect.NoError(t, os.WriteFile(filepath.Join(made, name), []byte(content), 0o644))
	}
	goCommand(t, made, nil, "mod", "tidy")
	if path == ours {
		for goos, cgo := range map[string]string{"linux": "1", "windows": "0", "darwin": "0"} { // as go vet has compiled them
			goCommand(t, made, []string{"GOOS=" + goos, "CGO_ENABLED=" + cgo}, "build", "-o", filepath.Join(t.TempDir(), "importer"), ".")
		}
	}
	return made
}

// graphOf returns the versions of all modules of a graph, and the go line.
func graphOf(t *testing.T, dir string) (versions map[string]string, goLine string) {
	t.Helper()
	versions = map[string]string{}
	for line := range strings.Lines(goCommand(t, dir, nil, "list", "-m", "all")) {
		if f := strings.Fields(line); len(f) > 1 { // the first is the program itself
			versions[f[0]] = f[1]
		}
	}
	return versions, readGoMod(t, dir).Go
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path = expect.Value(filepath.Abs(path))(t)
	return path
}

// newer reports whether one version is higher than another, as "v1.2.3" is
// higher than "v1.2.1-0.2024". A pre-release precedes its release.
func newer(one, other string) bool {
	numbers := func(v string) (n []int, pre string) {
		v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
		v, pre, _ = strings.Cut(v, "-")
		for _, part := range strings.Split(v, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n, pre
	}
	a, preA := numbers(one)
	b, preB := numbers(other)
	if c := slices.Compare(a, b); c != 0 {
		return c > 0
	}
	if preA == "" || preB == "" {
		return preA == "" && preB != ""
	}
	return preA > preB
}

func TestNewer(t *testing.T) {
	order := []string{"v0.0.0-2020", "v0.0.0-2021", "v0.9.0", "v0.10.0-rc.1", "v0.10.0", "v1.2.9+incompatible", "v1.10.0"}
	for i, one := range order {
		for j, other := range order {
			expect.That(t, newer(one, other) == (i > j), "newer(%s, %s) is %v", one, other, i <= j)
		}
	}
}
