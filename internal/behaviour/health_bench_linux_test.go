package behaviour_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// BenchmarkHealth is the verdict on all containers of a host, by comparison, from one
// look at the kernel. Its time should grow with the number of containers, and no faster.
func BenchmarkHealth(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newRealHost(b)
			r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(crowdList(h)))
			for i := range n {
				id := fmt.Sprint("c", i)
				_, err := r.Setup(b.Context(), id, h.Container(id), testhost.MapPort(int32(20000+i)))
				expect.NoError(b, err)
			}
			b.Cleanup(func() {
				for i := range n {
					expect.NoError(b, r.Remove(b.Context(), fmt.Sprint("c", i), ""))
				}
			})
			before := processTime(b)
			for b.Loop() {
				report, err := r.Health(b.Context(), cni.HealthOptions{WithoutCheck: true})
				expect.NoError(b, err)
				if healthy := report.Count(cni.StateHealthy); healthy != n || report.Containers[0].Uncompared != nil {
					b.Fatalf("%d are healthy, want %d; the first is %v", healthy, n, report.Containers[0])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/container")
			b.ReportMetric(float64((processTime(b)-before).Microseconds())/float64(b.N*n), "CPU-µs/container")
		})
	}
}

// processTime is the time that all CPUs have spent on this process. Unlike the time that
// passes, it does not depend on other processes.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	expect.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// crowdList is a list for more containers than a /24 has room for.
func crowdList(h *realHost) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.77.0.0/16"}},
		{"type": "portmap", "capabilities": {"portMappings": true}},
		{"type": "firewall"}]}`, h.Path("ipam"))
}
