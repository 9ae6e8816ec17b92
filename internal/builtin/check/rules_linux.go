package check

import (
	"context"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// Rules returns the missing ones of an attachment's rules as differences of one
// kind. explain completes the error of CHECK.
func Rules(ctx context.Context, r *plugin.Request, v *compare.View, kind compare.Kind, b fwrules.Backend, want fwrules.Rules, explain func(error) error) ([]compare.Difference, error) {
	missing, err := v.Rules.Missing(ctx, b, want)
	if err != nil {
		return nil, explain(err)
	}
	var all []compare.Difference
	for _, m := range missing {
		d := compare.Difference{Kind: kind, Object: m.Object, Wanted: m.Object, Found: m.Found, Err: explain(m.Err)}
		if m.Found != "" {
			d.Why = "another rule is in its place"
		} else {
			d.Fix = func(ctx context.Context) error {
				return explain(caller.From(ctx).Firewalls(r.Host).Add(ctx, b, m.Rules))
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// rules are the kernel's rules.
type rules struct{ *netfilter.Firewalls }

// Missing returns all rules if one is missing.
func (f rules) Missing(ctx context.Context, b fwrules.Backend, r fwrules.Rules) ([]fwrules.Missing, error) {
	if err := f.Check(ctx, b, r); err != nil {
		return []fwrules.Missing{{Rules: r, Object: "rules", Err: err}}, nil
	}
	return nil, nil
}
