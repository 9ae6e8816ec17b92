// Package check is CHECK for the built-in plugins that compare their part of an
// attachment with its record: the comparison looks at the kernel itself, and
// CHECK fails with the first difference.
package check

import (
	"context"
	"errors"
	"net/netip"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Run is the plugin's CHECK. It does not check the plugins to which the plugin
// delegates.
func Run(ctx context.Context, r *plugin.Request, p compare.Comparer) (err error) {
	v, done := Kernel(ctx, r)
	defer func() { err = errors.Join(err, done()) }()
	all, err := p.Compare(ctx, r, v)
	if err != nil {
		return err
	}
	return First(all)
}

// First returns the error of the first difference that has one.
func First(all []compare.Difference) error {
	for _, d := range all {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

// Kernel returns the kernel as a view, for a request of CHECK. It opens the
// sockets that the comparison needs; done closes them. The view's answers are as
// current as the kernel's.
func Kernel(ctx context.Context, r *plugin.Request) (v *compare.View, done func() error) {
	g := caller.From(ctx)
	host, container := &kernel{conns: g.Conns, ns: r.Host}, &kernel{conns: g.Conns, ns: r.Container}
	v = &compare.View{Host: host, Container: container, Rules: g.Firewalls(r.Host), Queues: host, VLANs: host}
	return v, func() error { return errors.Join(container.close(), host.close()) }
}

// kernel is a network namespace whose socket is opened for the first question.
type kernel struct {
	conns *links.Conns
	ns    *netns.Handle
	conn  *links.Conn
}

func (k *kernel) open() (_ *links.Conn, err error) {
	if k.conn == nil {
		k.conn, err = k.conns.Borrow(k.ns)
	}
	return k.conn, err
}

func (k *kernel) close() error {
	if k.conn == nil {
		return nil
	}
	return k.conn.Close()
}

func (k *kernel) Link(name string) (links.Link, error) {
	c, err := k.open()
	if err != nil {
		return links.Link{}, err
	}
	return c.Link(name)
}

func (k *kernel) LinkByIndex(index int) (links.Link, error) {
	c, err := k.open()
	if err != nil {
		return links.Link{}, err
	}
	return c.LinkByIndex(index)
}

func (k *kernel) Addresses(index int) ([]links.Address, error) {
	c, err := k.open()
	if err != nil {
		return nil, err
	}
	return c.Addresses(index)
}

func (k *kernel) Routes(index int) ([]links.Route, error) {
	c, err := k.open()
	if err != nil {
		return nil, err
	}
	return c.Routes(index)
}

func (k *kernel) Queues(index int) (links.Queues, error) {
	c, err := k.open()
	if err != nil {
		return links.Queues{}, err
	}
	return c.Queues(index)
}

// InterfaceTo makes the view find the interface to an address as the kernel does.
func (k *kernel) InterfaceTo(to netip.Addr) (index int, err error) {
	c, err := k.open()
	if err != nil {
		return 0, err
	}
	return c.InterfaceTo(to)
}

func (k *kernel) VLANs(index int) (links.VLANs, error) {
	c, err := k.open()
	if err != nil {
		return nil, err
	}
	return c.VLANs(index)
}
