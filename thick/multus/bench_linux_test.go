package multus

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/store/conflist"
)

// contestant is a program that the benchmark executes.
type contestant struct {
	name, path string
	ifName     string
	took, cpu  []time.Duration // of each execution
}

// BenchmarkShim executes Multus' shim, this library's and a reference plugin by turns, as a
// runtime does: to print their versions, which is the cost of the process alone, and for
// calls that the daemon answers at once, while the plugin, loopback, asks the kernel. All
// are built alike, without the C library. The metrics are medians, of the time from the
// start to the end of the process and of its CPU time, and the ratios of these times, which
// depend less on the machine.
func BenchmarkShim(b *testing.B) {
	all := contestants(b)
	record(b, func(path string) (int, string) {
		if path == "/cni" {
			return http.StatusOK, `{"Result": {"cniVersion": "1.0.0"}}`
		}
		return http.StatusOK, ""
	})
	newPod(b)
	for _, verb := range []string{"VERSION", "ADD", "DEL"} {
		b.Run(verb, func(b *testing.B) {
			for _, c := range all {
				c.execute(b, verb) // the files are in memory from now on
				c.took, c.cpu = nil, nil
			}
			for i := 0; b.Loop(); i++ {
				for j := range all { // each is as often the first
					all[(i+j)%len(all)].execute(b, verb)
				}
			}
			report(b, all)
		})
	}
}

// contestants builds the programs.
func contestants(b *testing.B) []*contestant {
	b.Helper()
	plugins := expect.Value(refplugins.Dir(b.Context(), io.Discard))(b)
	dir := b.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", dir, module+"/cmd/multus-shim", "./ours")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return []*contestant{
		{name: "multus", path: filepath.Join(dir, "multus-shim"), ifName: "eth0"},
		{name: "ours", path: filepath.Join(dir, "ours"), ifName: "eth0"},
		{name: "plugin", path: filepath.Join(plugins, conflist.Loopback), ifName: "lo"},
	}
}

// execute runs the program once.
func (c *contestant) execute(b *testing.B, verb string) {
	b.Helper()
	call := podCall(verb)
	call.ifName = c.ifName
	cmd := call.command(c.path)
	begin := time.Now()
	out, err := cmd.Output()
	c.took = append(c.took, time.Since(begin))
	if err != nil {
		b.Fatalf("%s: %v: %s", c.name, err, out)
	}
	c.cpu = append(c.cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
}

// report reports the medians and the ratios, and logs the sizes of the files.
func report(b *testing.B, all []*contestant) {
	b.Helper()
	median := func(of []time.Duration) float64 {
		slices.Sort(of)
		return of[len(of)/2].Seconds() * 1000
	}
	took, cpu := map[string]float64{}, map[string]float64{}
	sizes := "KiB of the files:"
	for _, c := range all {
		took[c.name], cpu[c.name] = median(c.took), median(c.cpu)
		b.ReportMetric(took[c.name], c.name+"-ms")
		b.ReportMetric(cpu[c.name], c.name+"-cpu-ms")
		info := expect.Value(os.Stat(c.path))(b)
		sizes += fmt.Sprintf(" %s %d", c.name, info.Size()>>10)
	}
	for _, other := range []string{"multus", "plugin"} {
		b.ReportMetric(took["ours"]/took[other], "ours/"+other)
		b.ReportMetric(cpu["ours"]/cpu[other], "ours/"+other+"-cpu")
	}
	b.Log(sizes)
}
