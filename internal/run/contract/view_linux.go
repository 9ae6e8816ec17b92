package contract

import (
	"context"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// View is a look at the kernel, for one attachment. It is not safe for concurrent use.
type View struct {
	Host      Host
	Container Net
	Rules     *netfilter.Firewalls // of the host

	open []*links.Conn // until Close
}

// Net is what a network namespace has. [links.Conn] is one.
type Net interface {
	// Link and LinkByIndex find an interface. If there is none, [links.NotFound] is
	// true of the error.
	Link(name string) (links.Link, error)
	LinkByIndex(index int) (links.Link, error)
	// Addresses returns the addresses of an interface.
	Addresses(index int) ([]links.Address, error)
	// Routes returns the routes through an interface, with 0 through all.
	Routes(index int) ([]links.Route, error)
}

// Host is what the host's namespace has, for what plugins make there.
type Host interface {
	Net
	// Queues returns the queues of an interface. If there is no such interface,
	// [links.NotFound] is true of the error, or it has none.
	Queues(index int) (links.Queues, error)
	// VLANs returns the VLANs of a port of a bridge. An interface that is no port has none.
	VLANs(index int) (links.VLANs, error)
}

// Kernel returns the kernel as a view, for a request of CHECK: sockets in the namespaces
// that the request has. done closes them.
func Kernel(ctx context.Context, r *plugin.Request) (v *View, done func() error, err error) {
	g := From(ctx)
	v = &View{Rules: g.Firewalls(r.Host)}
	return v, v.Close, v.ask(g.Conns, r.Host, r.Container)
}

// ask opens the sockets by which the kernel itself answers about the host and about the
// container, unless they are nil. After an error none is open.
func (v *View) ask(conns *links.Conns, host, container *netns.Handle) error {
	for i, ns := range []*netns.Handle{host, container} {
		if ns == nil {
			continue
		}
		c, err := conns.Borrow(ns)
		if err != nil {
			return joined.Errors(err, v.Close())
		}
		v.open = append(v.open, c)
		if i == 0 {
			v.Host = c
		} else {
			v.Container = c
		}
	}
	return nil
}

// For returns the view for the comparison of one plugin's part, and until the next call.
// filters are those of its rules.
func (v *View) For(filters netfilter.Options) *View {
	v.Rules = v.Rules.For(filters)
	return v
}

// HasLink reports whether the container has an interface of that name.
func (v *View) HasLink(name string) (bool, error) {
	_, err := v.Container.Link(name)
	if links.NotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Close releases the view.
func (v *View) Close() error {
	var errs []error
	for _, c := range v.open {
		errs = append(errs, c.Close())
	}
	v.open = nil
	return joined.Errors(errs...)
}
