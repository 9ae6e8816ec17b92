package netfilter

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// TestSweepWhileOthersAreAdded: sweeps run beside ADDs of others. Each
// container is complete or absent.
func TestSweepWhileOthersAreAdded(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, backend := range []string{"iptables", "nftables"} {
			t.Run(backend+" "+variant, func(t *testing.T) {
				h := newHost(t, variant)
				list := h.network("podnet", "1", strings.ReplaceAll(common, "BACKEND", backend))
				var leaving, coming []attachment
				for i := range 3 {
					leaving = append(leaving, h.mustAdd(list, fmt.Sprint("go", i), "eth0", fewMappings(1000+i)))
				}
				size := strings.Count(h.find(leaving[0].target()).String(), "\n")
				for i := range 3 {
					id := fmt.Sprint("come", i)
					h.newNetNS(id)
					coming = append(coming, h.attachment(list, id, "eth0", fewMappings(2000+i)))
				}
				h.together(leaving, coming)
				for _, a := range leaving {
					if plan := h.find(a.target()); !plan.Empty() {
						t.Errorf("left of %s:\n%s", a.rt.ContainerID, plan)
					}
				}
				for _, a := range coming {
					plan := h.sweep(a.target())
					if n := strings.Count(plan.String(), "\n"); n != size {
						t.Errorf("of %s there were %d things, want %d:\n%s", a.rt.ContainerID, n, size, plan)
					}
				}
				if left := h.filters().Without(audit.Shared); len(left) > 0 {
					t.Errorf("left:\n%s", strings.Join(left, "\n"))
				}
			})
		}
	}
}

// together sweeps some attachments while it adds the others.
func (h *host) together(sweep, add []attachment) {
	h.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(sweep)+len(add))
	fw := Open(h.ns, Options{})
	for i, a := range sweep {
		wg.Go(func() {
			plan, err := Find(h.t.Context(), fw, a.target())
			errs[i] = errors.Join(err, plan.Apply(h.t.Context()))
		})
	}
	for i := range add {
		wg.Go(func() {
			errs[len(sweep)+i] = h.ns.Do(func() error { return h.run(&add[i]) })
		})
	}
	wg.Wait()
	expect.NoError(h.t, errors.Join(errs...))
}
