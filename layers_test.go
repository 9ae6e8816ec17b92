package cni_test

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// floors are the folders below internal, from the ground up. A package imports only packages
// of its own floor or of a lower one. The face stands on all of them, and the other public
// packages on the face.
var floors = []string{"kernel", "store", "run", "builtin", "engine", "cni"}

// floorOf returns the floor of a package of the module; -1 for one that stands outside, as
// tests, programs and the packages over the face do.
func floorOf(name string) int {
	switch name {
	case "netns":
		name = "internal/kernel/netns"
	case "plugin":
		name = "internal/run/plugin"
	case "outcome":
		name = "internal/engine/outcome"
	case "cni":
		return len(floors) - 1
	}
	below, internal := strings.CutPrefix(name, "internal/")
	folder, _, _ := strings.Cut(below, "/")
	if !internal || within(ours+"/"+name, testSupport...) {
		return -1
	}
	return slices.Index(floors, folder)
}

// room is what a floor has, and how many of its imports lead to each lower one.
type room struct {
	packages []string
	down     map[string]int
}

// TestPackagesImportDownwards compares the picture in DESIGN.md with the imports.
func TestPackagesImportDownwards(t *testing.T) {
	house := map[string]*room{}
	for _, floor := range floors {
		house[floor] = &room{down: map[string]int{}}
	}
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "./...") {
			name := inModule(p.ImportPath)
			at := floorOf(name)
			if at < 0 {
				if strings.HasPrefix(name, "internal/") && !slices.Contains(harness, name) && !within(p.ImportPath, testSupport...) {
					t.Errorf("package %s is on no floor: decide where it belongs", name)
				}
				continue
			}
			r := house[floors[at]]
			if goos == "linux" && name != "cni" {
				r.packages = append(r.packages, path.Base(name))
			}
			for _, imported := range p.Imports {
				if !within(imported, ours) {
					continue
				}
				below := floorOf(inModule(imported))
				switch {
				case below < 0 || below > at:
					t.Errorf("%s: %s imports %s, which is not below it", goos, name, inModule(imported))
				case below < at && goos == "linux":
					r.down[floors[below]]++
				}
			}
		}
	}
	design := string(expect.Value(os.ReadFile("DESIGN.md"))(t))
	picture := draw(house)
	expect.That(t, strings.Contains(design, "```\n"+picture+"```\n"), "the picture in DESIGN.md is not that of the imports, which is\n%s", picture)
}

// draw draws the house from the roof to the ground.
func draw(house map[string]*room) string {
	var b strings.Builder
	for at, floor := range slices.Backward(floors) {
		r := house[floor]
		slices.Sort(r.packages)
		var down []string
		for _, below := range slices.Backward(floors[:at]) {
			if n := r.down[below]; n > 0 {
				down = append(down, fmt.Sprintf("%s %d", below, n))
			}
		}
		fmt.Fprintf(&b, "%-9s%s\n", floor, strings.Join(r.packages, " "))
		if at > 0 {
			fmt.Fprintf(&b, "   ↓     %s\n", strings.Join(down, ", "))
		}
	}
	return b.String()
}

// harness are packages of tests alone.
var harness = []string{"internal/behaviour", "internal/damage", "internal/faults", "internal/interchange", "internal/scripted/plugin"}

// inModule returns the path of a package in the module; "cni" is the module's root.
func inModule(importPath string) string {
	if importPath == ours {
		return "cni"
	}
	return strings.TrimPrefix(importPath, ours+"/")
}

// TestDesignListsThePackages compares DESIGN's table with the packages.
func TestDesignListsThePackages(t *testing.T) {
	_, section, ok := strings.Cut(string(expect.Value(os.ReadFile("DESIGN.md"))(t)), "\n## The packages\n")
	section, _, end := strings.Cut(section, "\n## ")
	expect.Must(t, ok && end, "DESIGN.md has no section on the packages")
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z/*]+)`").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	packages := []string{"internal/oracle", "internal/oracle/whereabouts", "thick/multus", "internal/refplugins/mains", "internal/refplugins/mains/flannel", "internal/lint", "internal/deb", "bench", "thick/metrics", "thick/kube", "thick/cmd/embedcnid", "gocni", "examples/faas", "examples/overlay", "cmd/embedcni"}
	for _, p := range goList(t, "linux", "./...") {
		packages = append(packages, inModule(p.ImportPath))
	}
	for _, name := range packages {
		expect.That(t, within(name, "examples") || slices.ContainsFunc(listed, func(l string) bool { matched, _ := path.Match(l, name); return matched }),
			"DESIGN.md does not list %s", name)
	}
	for _, l := range listed {
		expect.That(t, slices.ContainsFunc(packages, func(name string) bool { matched, _ := path.Match(l, name); return matched }),
			"DESIGN.md lists %s, which is no package", l)
	}
}
