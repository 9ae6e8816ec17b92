package compare

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
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
	return First(all)
}

// First returns the error of the first difference that has one.
func First(all []Difference) error {
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
	var open []*links.Conn
	done = func() error {
		var errs []error
		for _, c := range open {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	if r.Host != nil {
		c, err := g.Conns.Borrow(r.Host)
		if err != nil {
			return nil, nil, err
		}
		open = append(open, c)
		v.Host, v.Queues, v.VLANs = c, c, c
	}
	if r.Container != nil {
		c, err := g.Conns.Borrow(r.Container)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		open = append(open, c)
		v.Container = c
	}
	return v, done, nil
}
