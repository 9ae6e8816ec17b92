package guarded

import (
	"github.com/embedcni/cni/internal/builtin/prevresult"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/record"
)

// signsOf returns the signs of the attachments of an owner that are complete, and of
// which no removal has begun. ok reports whether there is one.
func signsOf(rec *record.Record, owner string) (signs []guard.Sign, ok bool) {
	for i := range rec.Attachments {
		n := &rec.Attachments[i]
		if n.State != record.Added || rec.IsUnfinished(n) || rec.OwnerOf(n) != owner {
			continue
		}
		ok = true
		result := chain.Decode(n.Result)
		for _, a := range prevresult.Addresses(result) {
			signs = append(signs, guard.OfAddress(a))
		}
		if result == nil {
			continue
		}
		for _, l := range result.Interfaces {
			if l.Sandbox == "" && l.Name != "" { // on the host
				signs = append(signs, guard.OfLink(l.Name))
			}
		}
	}
	return signs, ok
}
