package examples

import (
	"os"
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

// TestEachProgramIsTested: a new program is run by these tests, or has its own.
func TestEachProgramIsTested(t *testing.T) {
	tested := slices.Concat(programs, []string{"./quickstart", "./faas"})
	var found []string
	for _, pattern := range []string{"*/main.go", "*/*/main.go"} {
		for _, file := range expect.Value(filepath.Glob(pattern))(t) {
			found = append(found, "./"+filepath.Dir(file))
		}
	}
	slices.Sort(tested)
	slices.Sort(found)
	expect.Same(t, "programs", found, tested)
	for _, own := range []string{"quickstart/quickstart_linux_test.go", "faas/faas_linux_test.go"} {
		expect.NoError(t, expect.Err(os.Stat(own)))
	}
}
