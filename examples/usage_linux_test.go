package examples

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestUsage: a program that needs arguments says so, and does nothing else.
func TestUsage(t *testing.T) {
	leavesNoTrace(t)
	for _, dir := range programs {
		name := filepath.Base(dir)
		p := start(t, nil, name)
		expect.Same(t, name+": exit code", p.exitCode(t), 2)
		usage := p.whole(t)
		expect.That(t, strings.HasPrefix(usage, "usage: "+name+" "), "%s says %q", name, usage)
		if name == "shim" {
			continue // its arguments are a runtime's
		}
		p = start(t, nil, name, "-h")
		expect.Same(t, name+" -h: exit code", p.exitCode(t), 0)
		expect.Same(t, name+" -h", p.whole(t), usage)
	}
}

// TestEachProgramIsTested: by these tests, or by some beside it.
func TestEachProgramIsTested(t *testing.T) {
	var found []string
	for _, pattern := range []string{"*/main.go", "*/*/main.go"} {
		found = append(found, expect.Value(filepath.Glob(pattern))(t)...)
	}
	expect.That(t, len(found) > len(programs), "only %v are programs", found)
	for _, file := range found {
		dir := filepath.Dir(file)
		own := expect.Value(filepath.Glob(dir + "/*_test.go"))(t)
		expect.That(t, slices.Contains(programs, "./"+dir) || len(own) > 0, "nothing runs the program in %s", dir)
	}
}
