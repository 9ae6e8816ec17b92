package compare

import (
	"context"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// MissingRules returns the missing ones of an attachment's rules as differences of one
// kind. explain completes the error of CHECK.
func MissingRules(ctx context.Context, r *plugin.Request, v *View, kind Kind, b fwrules.Backend, want fwrules.Rules, explain func(error) error) ([]Difference, error) {
	missing, err := v.Rules.Missing(ctx, b, want)
	if err != nil {
		return nil, explain(err)
	}
	return differences(kind, missing, explain, func(ctx context.Context, m fwrules.Missing) error {
		return caller.From(ctx).Firewalls(r.Host).Restore(ctx, m.Backend, m.Rules)
	}), nil
}

// MissingSpoofCheck is [MissingRules] for the rules against other MAC addresses.
func MissingSpoofCheck(ctx context.Context, r *plugin.Request, v *View, want fwrules.SpoofCheck, explain func(error) error) ([]Difference, error) {
	missing, err := v.Rules.MissingSpoofCheck(ctx, want)
	if err != nil {
		return nil, explain(err)
	}
	return differences(Rule, missing, explain, func(ctx context.Context, _ fwrules.Missing) error {
		return caller.From(ctx).Firewalls(r.Host).RestoreSpoofCheck(ctx, want)
	}), nil
}

func differences(kind Kind, missing []fwrules.Missing, explain func(error) error, restore func(context.Context, fwrules.Missing) error) (all []Difference) {
	for _, m := range missing {
		d := Difference{Kind: kind, Object: m.Object, Wanted: m.Object, Found: m.Found, Err: explain(m.Err)}
		if m.Found != "" {
			d.Why = "another rule is in its place"
		} else {
			d.Fix = func(ctx context.Context) error {
				if err := restore(ctx, m); err != nil {
					return explain(err)
				}
				return nil
			}
		}
		all = append(all, d)
	}
	return all
}
