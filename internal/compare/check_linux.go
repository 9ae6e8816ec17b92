package compare

import (
	"context"
	"errors"
	"net/netip"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Check is the CHECK of a built-in plugin: it compares with the kernel itself, and fails
// with the first difference. It does not check the plugins to which the plugin delegates.
func Check(ctx context.Context, r *plugin.Request, p Comparer) (err error) {
	v, done := Kernel(ctx, r)
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

// Kernel returns the kernel as a view, for a request of CHECK. It opens the
// sockets that the comparison needs; done closes them. The view's answers are as
// current as the kernel's.
func Kernel(ctx context.Context, r *plugin.Request) (v *View, done func() error) {
	g := caller.From(ctx)
	host, container := &kernel{conns: g.Conns, ns: r.Host}, &kernel{conns: g.Conns, ns: r.Container}
	v = &View{Host: host, Container: container, Rules: g.Firewalls(r.Host), Queues: host, VLANs: host}
	return v, func() error { return errors.Join(container.close(), host.close()) }
}

// kernel is a network namespace whose socket is opened for the first question.
type kernel struct {
	conns *links.Conns
	ns    *netns.Handle
	conn  *links.Conn
}

func (k *kernel) close() error {
	if k.conn == nil {
		return nil
	}
	return k.conn.Close()
}

// ask asks the kernel.
func ask[T any](k *kernel, question func(*links.Conn) (T, error)) (answer T, err error) {
	if k.conn == nil {
		if k.conn, err = k.conns.Borrow(k.ns); err != nil {
			return answer, err
		}
	}
	return question(k.conn)
}

func (k *kernel) Link(name string) (links.Link, error) {
	return ask(k, func(c *links.Conn) (links.Link, error) { return c.Link(name) })
}

func (k *kernel) LinkByIndex(index int) (links.Link, error) {
	return ask(k, func(c *links.Conn) (links.Link, error) { return c.LinkByIndex(index) })
}

func (k *kernel) Addresses(index int) ([]links.Address, error) {
	return ask(k, func(c *links.Conn) ([]links.Address, error) { return c.Addresses(index) })
}

func (k *kernel) Routes(index int) ([]links.Route, error) {
	return ask(k, func(c *links.Conn) ([]links.Route, error) { return c.Routes(index) })
}

func (k *kernel) Queues(index int) (links.Queues, error) {
	return ask(k, func(c *links.Conn) (links.Queues, error) { return c.Queues(index) })
}

// InterfaceTo makes the view find the interface to an address as the kernel does.
func (k *kernel) InterfaceTo(to netip.Addr) (int, error) {
	return ask(k, func(c *links.Conn) (int, error) { return c.InterfaceTo(to) })
}

func (k *kernel) VLANs(index int) (links.VLANs, error) {
	return ask(k, func(c *links.Conn) (links.VLANs, error) { return c.VLANs(index) })
}
