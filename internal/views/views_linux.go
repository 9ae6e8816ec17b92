package views

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
)

// Looks opens views. The zero Looks open views of the kernel itself.
type Looks struct{}

// Dumps returns Looks that read each host once.
func Dumps() *Looks { return &Looks{} }

// View is a view of the kernel for one container. Close releases it.
type View struct {
	compare.View
	host, container *links.Conn
}

// Open returns the view of a container for the attachments whose plugins ran in host.
// filters are those of the container's packet filter rules.
func (*Looks) Open(_ context.Context, host *hostns.NetNS, container *netns.Handle, filters netfilter.Options) (*View, error) {
	v := &View{}
	var err error
	if v.host, err = host.Conns.Borrow(host.Handle); err != nil {
		return nil, err
	}
	if v.container, err = host.Conns.Borrow(container); err != nil {
		return nil, errors.Join(err, v.host.Close())
	}
	v.Host, v.Container, v.Queues = v.host, v.container, v.host
	v.Rules = netfilter.Open(host.Handle, filters)
	return v, nil
}

// Compared returns the view for comparisons.
func (v *View) Compared() *compare.View { return &v.View }

// HasLink reports whether the container has an interface of that name.
func (v *View) HasLink(name string) (bool, error) {
	_, err := v.Container.Link(name)
	if links.NotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Close releases the view.
func (v *View) Close() error { return errors.Join(v.host.Close(), v.container.Close()) }
