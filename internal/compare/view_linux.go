package compare

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// View is a look at the kernel, for one attachment. It is not safe for concurrent use.
type View struct {
	Host, Container Net
	Rules           *netfilter.Firewalls // of the host

	conns        *links.Conns
	host         *netns.Handle
	dump         *dump       // of the host; nil: the kernel is asked
	conn, inside *links.Conn // open sockets; nil if they were not needed
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

// Kernel returns the kernel as a view, for a request of CHECK: sockets in the namespaces
// that the request has. done closes them.
func Kernel(ctx context.Context, r *plugin.Request) (v *View, done func() error, err error) {
	g := caller.From(ctx)
	v = &View{Rules: g.Firewalls(r.Host), conns: g.Conns, host: r.Host}
	if err := v.ask(r.Host != nil, r.Container); err != nil {
		return nil, nil, errors.Join(err, v.Close())
	}
	return v, v.Close, nil
}

// ask opens the sockets by which the kernel itself answers about the host, and about the
// container if there is one.
func (v *View) ask(host bool, container *netns.Handle) (err error) {
	if host {
		if err := v.dial(); err != nil {
			return err
		}
		v.Host = v.conn
	}
	if container != nil {
		if v.inside, err = v.conns.Borrow(container); err != nil {
			return err
		}
		v.Container = v.inside
	}
	return nil
}

// dial opens the socket in the host's namespace.
func (v *View) dial() (err error) {
	if v.conn == nil {
		v.conn, err = v.conns.Borrow(v.host)
	}
	return err
}

// For returns the view for the comparison of one plugin's part, and until the next call.
// filters are those of its rules.
func (v *View) For(filters netfilter.Options) *View {
	if v.dump != nil {
		v.Rules = v.dump.rules.For(filters)
	} else {
		v.Rules = netfilter.Open(v.host, filters)
	}
	return v
}

// Queues returns the queues of an interface of the host. If there is no such interface,
// [links.NotFound] is true of the error, or it has none. The kernel has them for one
// interface at a time, so that it is always asked.
func (v *View) Queues(index int) (links.Queues, error) {
	if err := v.dial(); err != nil {
		return links.Queues{}, err
	}
	return v.conn.Queues(index)
}

// VLANs returns the VLANs of a port of a bridge of the host. An interface that is no port
// has none.
func (v *View) VLANs(index int) (links.VLANs, error) {
	if v.dump == nil {
		return v.conn.VLANs(index)
	}
	return v.dump.VLANs(index)
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
	for _, c := range []*links.Conn{v.conn, v.inside} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
