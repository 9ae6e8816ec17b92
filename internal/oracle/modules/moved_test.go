package modules

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestAReplacementMovesAWholeProgram: a program and a module that it requires import go-cni.
// Each is run as it is, with go-cni and with the module gocni in its place.
func TestAReplacementMovesAWholeProgram(t *testing.T) {
	dir := t.TempDir()
	expect.NoError(t, os.CopyFS(dir, os.DirFS("testdata/moved")))
	write := func(path, module, more string) {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, path, "go.mod"), fmt.Appendf(nil,
			"module example.org/%s\n\ngo 1.25.0\n\nrequire %s v1.1.14\n%s", module, goCNI, more), 0o644))
	}
	write("dependency", "dependency", "")
	const own = "\nrequire example.org/dependency v0.0.0\n\nreplace example.org/dependency => ./dependency\n"
	for _, c := range []struct{ name, replaced, want string }{
		{"go-cni", "", "*cni.libcni <nil>\nlo cni-loopback loopback\ntrue true\n"},
		{"gocni", fmt.Sprintf("\nreplace %s => %q\n\nreplace %s => %q\n", goCNI, absolute(t, root+"/gocni"), ours, absolute(t, root)),
			"*cni.Runtime <nil>\nlo cni-loopback loopback\ntrue true\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(".", "moved", own+c.replaced)
			goCommand(t, dir, nil, "mod", "tidy")
			// As go vet has compiled the library.
			expect.Same(t, "what the program prints", goCommand(t, dir, []string{"CGO_ENABLED=1"}, "run", "."), c.want)
		})
	}
}
