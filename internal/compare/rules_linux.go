package compare

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// MissingRules returns the missing ones of an attachment's rules. explain completes their
// errors, and returns nil for nil.
func MissingRules(ctx context.Context, r *plugin.Request, v *View, want []netfilter.Rule, explain func(error) error) (all []Difference, err error) {
	missing, err := v.Rules.Missing(ctx, want...)
	if err != nil {
		return nil, explain(err)
	}
	for _, m := range missing {
		d := Difference{Kind: Rule, Object: m.Object(), Wanted: m.Object(), Found: m.Found, Err: explain(m.Err)}
		if d.Why = Why(m); d.Why == "" {
			d.Fix = func(ctx context.Context) error { return explain(Restore(ctx, r, m)) }
		}
		all = append(all, d)
	}
	return all, nil
}

// Restore makes a missing part of the rules again, in this module's own form, whoever
// made it in which. The record says so: the CHECK of an executable does not see the rules.
func Restore(ctx context.Context, r *plugin.Request, m netfilter.Missing) error {
	given := caller.From(ctx)
	if given.Filters.Executable {
		if err := caller.NoteRestored(given.Record, r.Type); err != nil {
			return err
		}
	}
	return given.Firewalls(r.Host).Restore(ctx, m.Rule)
}

// Why returns why a part cannot be made again, or "".
func Why(m netfilter.Missing) string {
	if m.Why == "" && m.Found != "" {
		return "another rule is in its place"
	}
	return m.Why
}

// OnlyExecutable is the error for a field of a configuration that only the executable of
// the type carries out, because built-in plugins have their rules in one form.
func OnlyExecutable(typ, field string) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig,
		"plugin %s: %s needs the plugin's executable, because the built-in plugin has its rules in nftables: "+
			"install %[1]q in a plugin directory, or remove the field", typ, field)
}
