package compare

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// MissingRules returns the missing ones of an attachment's rules as differences of one
// kind. explain completes the error of CHECK.
func MissingRules(ctx context.Context, r *plugin.Request, v *View, kind Kind, want fwrules.Rules, explain func(error) error) ([]Difference, error) {
	missing, err := v.Rules.Missing(ctx, want)
	if err != nil {
		return nil, explain(err)
	}
	return differences(kind, missing, explain, func(ctx context.Context, m fwrules.Missing) error {
		return Restore(ctx, r, m)
	}), nil
}

// Restore makes a missing part of the rules again, in this module's own form, whoever
// made it in which. The record says so: the CHECK of an executable does not see the rules.
func Restore(ctx context.Context, r *plugin.Request, m fwrules.Missing) error {
	given := caller.From(ctx)
	if given.Filters.Executable {
		if err := caller.NoteRestored(given.Record, r.Type); err != nil {
			return err
		}
	}
	return given.Firewalls(r.Host).Restore(ctx, m.Rules)
}

// Why returns why a part cannot be made again, or "".
func Why(m fwrules.Missing) string {
	if m.Why == "" && m.Found != "" {
		return "another rule is in its place"
	}
	return m.Why
}

func differences(kind Kind, missing []fwrules.Missing, explain func(error) error, restore func(context.Context, fwrules.Missing) error) (all []Difference) {
	for _, m := range missing {
		d := Difference{Kind: kind, Object: m.Object, Wanted: m.Object, Found: m.Found, Err: explain(m.Err)}
		if d.Why = Why(m); d.Why == "" {
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

// OnlyExecutable is the error for a field of a configuration that only the executable of
// the type carries out, because built-in plugins have their rules in one form.
func OnlyExecutable(typ, field string) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig,
		"plugin %s: %s needs the plugin's executable, because the built-in plugin has its rules in nftables: "+
			"install %[1]q in a plugin directory, or remove the field", typ, field)
}
