package cni_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// BenchmarkSetupBesideRecords is a Setup with built-in plugins, on a host with
// other recorded containers, with and without a background search among those.
// The two alternate, so that other load affects both alike. It reports the
// median of each.
func BenchmarkSetupBesideRecords(b *testing.B) {
	for _, records := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint("records=", records), func(b *testing.B) {
			h := newRealHost(b)
			runtimes := map[string]*cni.Runtime{
				"on": h.bridged(cni.WithOwner("tester")), "off": h.bridged(cni.WithOwner("tester"), cni.WithoutReaping()),
			}
			h.crowd(runtimes["off"], records)
			path := h.Container("c0")
			took := map[string][]time.Duration{}
			for i := range b.N {
				for _, which := range [][]string{{"on", "off"}, {"off", "on"}}[i%2] {
					r, start := runtimes[which], time.Now()
					if _, err := r.Setup(context.Background(), "c0", path); err != nil {
						b.Fatal(err)
					}
					took[which] = append(took[which], time.Since(start))
					if err := r.Remove(context.Background(), "c0", path); err != nil {
						b.Fatal(err)
					}
				}
			}
			for which, times := range took {
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-"+which)
			}
			err := runtimes["on"].Reap(context.Background()) // ends all background work
			expect.NoError(b, err)
		})
	}
}

// crowd records containers whose paths lead to their namespaces.
func (h *realHost) crowd(r *cni.Runtime, n int) {
	h.T.Helper()
	path := h.Container("crowd")
	testhost.MustSetUp(h.T, r, "crowd", path)
	base, err := h.Records().Load("crowd")
	expect.NoError(h.T, err)
	ns, err := netns.Open(path)
	expect.NoError(h.T, err)
	defer ns.Close()
	for i := range n {
		rec := *base
		rec.ContainerID, rec.Generation = record.ID(fmt.Sprint("crowd-", i)), 0
		rec.Attachments = slices.Clone(base.Attachments)
		expect.NoError(h.T, h.Records().Begin(&rec))
	}
}
