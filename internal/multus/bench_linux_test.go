package multus

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/refplugins"
)

// BenchmarkShim executes the shims: to print their versions, which is the cost of the
// process alone, and for calls that the daemon answers at once. A reference plugin is
// beside them. The metrics are of the process: its CPU time, its largest resident size and
// its file's size.
func BenchmarkShim(b *testing.B) {
	dir, err := refplugins.Dir(context.Background(), io.Discard)
	expect.NoError(b, err)
	record(b, func(path string, _ int) (int, string) {
		if path == "/cni" {
			return http.StatusOK, `{"Result": {"cniVersion": "1.0.0"}}`
		}
		return http.StatusOK, ""
	})
	newPod(b)
	for _, verb := range []string{"VERSION", "ADD", "DEL"} {
		for _, program := range []struct{ name, path string }{
			{"multus", os.Getenv(shimVar)}, {"ours", os.Getenv(oursVar)}, {"plugin", filepath.Join(dir, known.Static)},
		} {
			if verb != "VERSION" && program.name == "plugin" {
				continue // it has no daemon
			}
			b.Run(verb+"/"+program.name, func(b *testing.B) { execute(b, podCall(verb), program.path) })
		}
	}
}

func execute(b *testing.B, c call, program string) {
	var cpu, rss int64
	for b.Loop() {
		cmd := c.command(program)
		if out, err := cmd.Output(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		cpu += int64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			rss = max(rss, usage.Maxrss)
		}
	}
	info, err := os.Stat(program)
	expect.NoError(b, err)
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(rss), "rss-KiB")
	b.ReportMetric(float64(info.Size()>>10), "file-KiB")
}
