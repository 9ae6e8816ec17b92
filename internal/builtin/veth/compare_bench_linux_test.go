package veth_test

import (
	"context"
	"testing"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/views"
	"github.com/embedcni/cni/plugin"
)

// BenchmarkCompare measures the comparison of one attachment with a dump, without
// rules.
func BenchmarkCompare(b *testing.B) {
	for _, typ := range []string{"bridge", "ptp"} {
		b.Run(typ, func(b *testing.B) {
			h := newHost(b)
			side := routed
			side.typ = typ
			a := h.attach(side, "c1")
			a.compare(func(ctx context.Context, r *plugin.Request, p compare.Comparer, v *compare.View) error {
				dump := &compare.View{Host: expect.Value(views.ReadNamespace(r.Host))(b), Container: expect.Value(views.ReadNamespace(r.Container))(b), Rules: v.Rules}
				b.ReportAllocs()
				for b.Loop() {
					if all, err := p.Compare(ctx, r, dump); err != nil || len(all) > 0 {
						b.Fatal(all, err)
					}
				}
				return nil
			})
		})
	}
}
