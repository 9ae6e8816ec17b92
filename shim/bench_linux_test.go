package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/server"
)

// BenchmarkStart executes the shim as a runtime does, against a daemon that does nothing,
// and beside it a reference plugin that does next to nothing.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	plugin := filepath.Join(dir, "shim")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", plugin, "../examples/thick/shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the reference plugins are built
	out, err := build.CombinedOutput()
	if err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	reference := filepath.Join(expect.Value(refplugins.Dir(b.Context(), os.Stderr))(b), known.Loopback)
	for _, path := range []string{plugin, reference} {
		info := expect.Value(os.Stat(path))(b)
		b.Logf("%s: %d bytes", path, info.Size())
	}
	s := expect.Value(server.New(&book{}, server.Options{}))(b)
	ln := expect.Value(s.Listen(filepath.Join(dir, "run", "multus.sock")))(b)
	go s.Serve(ln)
	b.Cleanup(func() { expect.NoError(b, s.Shutdown(b.Context())) })
	ns := cnitest.Container(b)
	config := func(kind string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": %q, "daemonSocketDir": %q, "address": "10.1.0.7/16"}`,
			kind, filepath.Join(dir, "run"))
	}
	for _, verb := range []string{"VERSION", "ADD", "DEL"} {
		for _, path := range []string{plugin, reference} {
			name := filepath.Base(path)
			b.Run(verb+"/"+name, func(b *testing.B) {
				for range b.N {
					cmd := exec.Command(path)
					cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_NETNS=" + ns, "CNI_IFNAME=lo", "CNI_PATH=" + dir}
					cmd.Stdin = strings.NewReader(config(name))
					if out, err := cmd.Output(); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
				}
			})
		}
	}
}
