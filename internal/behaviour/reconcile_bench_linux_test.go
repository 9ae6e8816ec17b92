package behaviour_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/reconcile"
)

// BenchmarkReconcile is the verdict on all containers that a scheduler names, by
// comparison. It should cost little more than that of Health.
func BenchmarkReconcile(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newRealHost(b)
			r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(crowdList(h)))
			var expected []reconcile.Expected
			for i := range n {
				id := fmt.Sprint("c", i)
				path := h.Container(id)
				_, err := r.Setup(b.Context(), id, path, testhost.MapPort(int32(20000+i)))
				expect.NoError(b, err)
				expected = append(expected, reconcile.Expected{ContainerID: id, NetNS: path})
			}
			b.Cleanup(func() {
				for _, e := range expected {
					expect.NoError(b, r.Remove(b.Context(), e.ContainerID, ""))
				}
			})
			before := processTime(b)
			for b.Loop() {
				report, err := reconcile.Run(b.Context(), r, expected, reconcile.Options{WithoutCheck: true})
				expect.NoError(b, err)
				expect.NoError(b, report.Err())
				expect.Same(b, "unexpected", len(report.Unexpected), 0)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/container")
			b.ReportMetric(float64((processTime(b)-before).Microseconds())/float64(b.N*n), "CPU-µs/container")
		})
	}
}
