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

// containerLink finds the attachment's interface in a namespace that lives on. By its
// name alone it is found only if nothing else is known of it.
func (s *search) containerLink(context.Context) ([]Item, error) {
	if s.Interface.Device != nil {
		return s.device()
	}
	if s.Container == nil || !s.Interface.Made || s.IfName == "lo" {
		return nil, nil
	}
	l, err := s.Conns.Lookup(s.Container, s.IfName)
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
		l, err := s.Conns.Lookup(s.Host, reported.Name)
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
