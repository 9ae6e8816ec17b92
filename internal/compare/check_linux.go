package compare

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/plugin"
)

// Check is the CHECK of a built-in plugin: it compares with the kernel itself, and fails
// with the first difference. It does not check the plugins to which the plugin delegates.
func Check(ctx context.Context, r *plugin.Request, p Comparer) (err error) {
	v, done, err := Kernel(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
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

// Kernel returns the kernel as a view, for a request of CHECK: sockets in the namespaces
// that the request has. done closes them.
func Kernel(ctx context.Context, r *plugin.Request) (v *View, done func() error, err error) {
	g := caller.From(ctx)
	v = &View{Rules: g.Firewalls(r.Host)}
	done = func() error { return nil }
	if r.Host != nil {
		c, err := g.Conns.Borrow(r.Host)
		if err != nil {
			return nil, nil, err
		}
		v.Host, v.Queues, v.VLANs, done = c, c, c, c.Close
	}
	if r.Container != nil {
		c, err := g.Conns.Borrow(r.Container)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		v.Container = c
		first := done
		done = func() error { return errors.Join(first(), c.Close()) }
	}
	return v, done, nil
}
