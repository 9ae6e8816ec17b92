package hostlocal

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/builtin/hostlocal"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// Benchmark measures ADD and DEL beside used addresses, on a tmpfs and on the
// disk: ours, and the reference plugin's own packages without starting a
// process.
func Benchmark(b *testing.B) {
	for _, parent := range []string{"/run", os.TempDir()} {
		for _, n := range []int{10, 1000, 3000} {
			base, err := os.MkdirTemp(parent, "host-local")
			expect.NoError(b, err)
			config := configFor(base, `"subnet": "10.0.0.0/16"`)
			p, ref := hostlocal.New(), reference{config}
			for i := range n {
				if _, err := p.Add(b.Context(), call(config, fmt.Sprintf("%064d", i))); err != nil {
					b.Fatal(err)
				}
			}
			place := fmt.Sprintf("%s/%d", map[bool]string{true: "tmpfs", false: "disk"}[parent == "/run"], n)
			b.Run(place+"/ours", func(b *testing.B) {
				var r *plugin.Request
				alternate(b, func(id string) (err error) {
					r = call(config, id)
					r.PrevResult, err = p.Add(b.Context(), r)
					return err
				}, func(string) error { return p.Del(b.Context(), r) })
			})
			b.Run(place+"/reference", func(b *testing.B) {
				alternate(b, func(id string) error {
					_, err := ref.add(id)
					return err
				}, ref.del)
			})
			b.Run(place+"/ours, 64 at once", func(b *testing.B) {
				var n atomic.Int64
				b.SetParallelism(64 / runtime.GOMAXPROCS(0))
				b.RunParallel(func(pb *testing.PB) {
					id := fmt.Sprint("parallel", n.Add(1))
					for pb.Next() {
						_, err := p.Add(b.Context(), call(config, id))
						if err := errors.Join(err, p.Del(b.Context(), call(config, id))); err != nil {
							b.Error(err)
						}
					}
				})
			})
			expect.NoError(b, os.RemoveAll(base))
		}
	}
}

// alternate measures both functions, called alternately.
func alternate(b *testing.B, add, del func(id string) error) {
	var spent [2]int64
	for b.Loop() {
		for i, f := range []func(string) error{add, del} {
			begin := time.Now()
			expect.NoError(b, f("the one that is measured"))
			spent[i] += time.Since(begin).Nanoseconds()
		}
	}
	b.ReportMetric(float64(spent[0])/float64(b.N)/1e3, "µs/ADD")
	b.ReportMetric(float64(spent[1])/float64(b.N)/1e3, "µs/DEL")
}
