package sweep

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// link is an interface to be deleted.
type link struct {
	ns    *netns.Handle
	where string
	name  string
	index int
}

func (l link) String() string { return fmt.Sprintf("interface %s %s", l.name, l.where) }

// Remove deletes the interface by its number: its name may be another's by now.
func (l link) Remove(context.Context) error {
	conn, err := links.Dial(l.ns)
	if err != nil {
		return err
	}
	if err = conn.Delete(l.index); err != nil {
		err = fmt.Errorf("delete %s: %w", l, err)
	}
	return errors.Join(err, conn.Close())
}

// sockets are the route sockets of one Find, one for each namespace.
type sockets struct {
	open map[*netns.Handle]*links.Conn
}

func (s *sockets) in(conns *links.Conns, ns *netns.Handle) (*links.Conn, error) {
	if conn, ok := s.open[ns]; ok {
		return conn, nil
	}
	conn, err := conns.Borrow(ns)
	if err != nil {
		return nil, err
	}
	if s.open == nil {
		s.open = make(map[*netns.Handle]*links.Conn)
	}
	s.open[ns] = conn
	return conn, nil
}

func (s *sockets) close() error {
	var errs []error
	for _, conn := range s.open {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// lookup returns the interface of that name, or nil.
func (s *sockets) lookup(conns *links.Conns, ns *netns.Handle, name string) (*links.Link, error) {
	conn, err := s.in(conns, ns)
	if err != nil {
		return nil, err
	}
	l, err := conn.Link(name)
	if links.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return &l, nil
}

// containerLink finds the attachment's interface in a namespace that lives on. By its
// name alone it is found only if nothing else is known of it.
func (s *search) containerLink(context.Context) ([]Item, error) {
	if s.Interface.Device != nil {
		return s.device()
	}
	if s.Container == nil || !s.Interface.Made || s.IfName == "lo" {
		return nil, nil
	}
	l, err := s.sockets.lookup(s.Conns, s.Container, s.IfName)
	if l == nil || err != nil {
		return nil, err
	}
	return []Item{link{ns: s.Container, where: "in the container", name: s.IfName, index: l.Index}}, nil
}

// hostEnds finds the host's ends of veth pairs that the result reports. The name alone
// does not identify one, as names are used again: it must be a veth with the hardware
// address that the plugin reported.
func (s *search) hostEnds(context.Context) ([]Item, error) {
	var items []Item
	var errs []error
	for _, reported := range s.Interface.HostEnds {
		l, err := s.sockets.lookup(s.Conns, s.Host, reported.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if l == nil || l.Kind != "veth" || !strings.EqualFold(l.MAC.String(), reported.MAC) {
			continue
		}
		items = append(items, link{ns: s.Host, where: "on the host", name: reported.Name, index: l.Index})
	}
	return items, errors.Join(errs...)
}
