package contract

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Check is the CHECK of a built-in plugin: it compares with the kernel itself, and fails
// with the first difference. It does not check the plugins to which the plugin delegates.
func Check(ctx context.Context, r *plugin.Request, p Comparer) (err error) {
	v, done, err := Kernel(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, done()) }()
	all, err := p.Compare(ctx, r, v)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

// Place is an interface, or a whole namespace, that has objects of an attachment: its
// addresses and routes, the modes of a port.
type Place struct {
	NS     *netns.Handle
	Inside bool
	Shared bool   // by all attachments; see [Difference.Shared]
	Whose  string // why nothing there is made again; empty if it is the ADD's
	Name   string // in errors: `interface "eth0" in the container`; may be empty
	// Find returns the interface as it is now, and Same reports whether that is the one
	// that was compared. They are nil for a namespace.
	Find func(*links.Conn) (links.Link, error)
	Same func(now links.Link) bool
}

// Make makes an object at an interface as it is now, or in a whole namespace.
type Make = func(ctx context.Context, conn *links.Conn, now links.Link) error

// Lacks completes the difference of an object that is not there, which make makes again.
// It is nil if nothing is to be made.
func (p *Place) Lacks(d Difference, make Make) Difference {
	d.Inside = p.Inside
	switch {
	case d.Why != "":
	case p.Whose != "":
		d.Why = p.Whose
	case make == nil:
		d.Why = "it differs"
	default:
		d.Shared = p.Shared
		d.Fix = func(ctx context.Context) error { return p.Do(ctx, make) }
	}
	return d
}

// Do calls do for the place, unless another interface has taken it by now.
func (p *Place) Do(ctx context.Context, do Make) error {
	err := On(ctx, p.NS, func(conn *links.Conn) (err error) {
		var now links.Link
		if p.Find != nil {
			if now, err = p.Find(conn); err == nil && !p.Same(now) {
				err = errors.New("it has changed since the comparison")
			}
			if err != nil {
				return err
			}
		}
		return do(ctx, conn, now)
	})
	if err == nil || p.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", p.Name, err)
}

// MissingRules returns the missing ones of an attachment's rules. explain completes their
// errors, and returns nil for nil; it is nil if they are complete.
func MissingRules(ctx context.Context, r *plugin.Request, v *View, want []netfilter.Rule, explain func(error) error) (all []Difference, err error) {
	if explain == nil {
		explain = func(err error) error { return err }
	}
	missing, err := v.Rules.Missing(ctx, want...)
	for _, m := range missing {
		d := Difference{Kind: Rule, Object: m.Object(), Wanted: m.Effect(), Found: m.Found, Err: explain(m.Err), Why: m.Why}
		if m.Kind == netfilter.Publish {
			d.Kind = Port
		}
		switch {
		case m.Found == "":
		case d.Kind == Port:
			d.Why = "the port belongs to somebody else now"
		default:
			d.Why = "another rule is in its place"
		}
		if d.Why == "" {
			d.Fix = func(ctx context.Context) error { return explain(restore(ctx, r, m)) }
		}
		all = append(all, d)
	}
	return all, explain(err)
}

// restore makes a missing part of the rules again, in this module's own form, whoever
// made it in which. The record says so: the CHECK of an executable does not see the rules.
func restore(ctx context.Context, r *plugin.Request, m netfilter.Missing) error {
	given := From(ctx)
	if given.Filters.Executable {
		if err := NoteRestored(given.Record, r.Type); err != nil {
			return err
		}
	}
	return given.Firewalls(r.Host).Restore(ctx, m.Rule)
}

// OnlyExecutable is the error for a field of a configuration that only the executable of
// the type carries out, because built-in plugins have their rules in one form.
func OnlyExecutable(typ, field string) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig,
		"plugin %s: %s needs the plugin's executable, because the built-in plugin has its rules in nftables: "+
			"install %[1]q in a plugin directory, or remove the field", typ, field)
}
