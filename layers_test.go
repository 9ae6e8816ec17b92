package cni_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// floors lists the packages of the module from the ground up. A package imports only
// packages of lower floors, so that a new import that points up, or a new package,
// is a decision made here.
var floors = [][]string{
	{
		"examples", "examples/thick", "internal/batch", "internal/behaviour",
		"internal/confwatch", "internal/damage", "internal/expect", "internal/faults", "internal/interchange",
		"internal/known", "internal/parallel", "internal/perm",
		"internal/plainfile", "internal/scripted", "internal/shared", "internal/spans",
		"thick/internal/wire", "thick/multinet",
	},
	{
		"internal/chain", "internal/conflist", "internal/dirwatch", "internal/lock",
		"internal/proc", "internal/scripted/plugin",
	},
	{
		"netns",
	},
	{
		"internal/audit", "internal/firewalld", "internal/nettest",
		"internal/record", "internal/sandbox", "internal/thread", "plugin",
		"thick/internal/delqueue",
	},
	{
		"internal/invoke", "internal/notify", "internal/ports", "internal/refplugins", "thick/server",
		"thick/shim",
	},
	{
		"examples/thick/shim", "internal/links", "internal/nft",
	},
	{
		"internal/hostns", "internal/iptables",
	},
	{
		"internal/firewalldtest",
	},
	{
		"internal/container", "internal/netfilter",
	},
	{
		"internal/caller",
	},
	{
		"internal/compare",
	},
	{
		"internal/builtin/bandwidth", "internal/builtin/firewall", "internal/builtin/hostlocal",
		"internal/builtin/ipam", "internal/builtin/portmap",
		"internal/builtin/tuning",
	},
	{
		"internal/builtin/lan", "internal/builtin/veth", "internal/runner",
	},
	{
		"internal/builtin/bridge", "internal/builtin/plugintest", "internal/health",
	},
	{
		"internal/builtin",
	},
	{
		"internal/leftovers",
	},
	{
		"internal/engine",
	},
	{
		"cni",
	},
	{
		"cnitest", "etcfiles", "examples/tested", "guard", "internal/testhost", "netconf", "reconcile",
		"thick/backend",
	},
	{
		"examples/allocrunner", "examples/quickstart", "examples/thick/daemon",
	},
}

// TestPackagesImportDownwards holds the order of floors.
func TestPackagesImportDownwards(t *testing.T) {
	floor := map[string]int{}
	for n, names := range floors {
		for _, name := range names {
			if _, twice := floor[name]; twice {
				t.Errorf("%s is on two floors", name)
			}
			floor[name] = n
		}
	}
	seen := map[string]bool{}
	for _, goos := range platforms {
		for _, p := range goList(t, goos, "./...") {
			name := inModule(p.ImportPath)
			seen[name] = true
			at, ok := floor[name]
			if !ok {
				t.Errorf("package %s is on no floor: decide where it belongs", name)
				continue
			}
			for _, imported := range p.Imports {
				if !within(imported, ours) {
					continue
				}
				if below, ok := floor[inModule(imported)]; ok && below >= at {
					t.Errorf("%s: %s imports %s, which is not below it", goos, name, inModule(imported))
				}
			}
		}
	}
	for name := range floor {
		if !seen[name] {
			t.Errorf("there is no package %s", name)
		}
	}
}

// inModule returns the path of a package in the module; "cni" is the module's root.
func inModule(path string) string {
	if path == ours {
		return "cni"
	}
	return strings.TrimPrefix(path, ours+"/")
}

// TestDesignListsThePackages compares DESIGN's table with the packages.
func TestDesignListsThePackages(t *testing.T) {
	design := expect.Value(os.ReadFile("DESIGN.md"))(t)
	_, section, ok := strings.Cut(string(design), "\n## The packages\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatal("DESIGN.md has no section on the packages")
	}
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z/*]+)`").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	modules := []string{"internal/oracle", "thick/multus", "internal/refplugins/mains", "internal/lint", "bench", "thick/metrics", "thick/kube", "examples/faas"}
	for _, p := range goList(t, "linux", "./...") {
		name := inModule(p.ImportPath)
		switch {
		case slices.Contains(listed, name), within(name, "examples"):
		case strings.HasPrefix(name, "internal/builtin") && slices.Contains(listed, "internal/builtin/*"):
		default:
			t.Errorf("DESIGN.md does not list %s", name)
		}
	}
	for _, name := range listed {
		name = strings.TrimSuffix(name, "/*")
		dir := name
		if name == "cni" {
			dir = "."
		}
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("DESIGN.md lists %s: %v", name, err)
		}
		if name != "cni" && !slices.Contains(modules, name) && len(goList(t, "linux", "./"+name)) != 1 {
			t.Errorf("DESIGN.md lists %s, which is no package", name)
		}
	}
}
