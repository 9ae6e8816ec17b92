package sweep

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

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
func (l link) Remove() error {
	return in(l.ns, unix.NETLINK_ROUTE, func(nl *netlink.Handle) error {
		err := nl.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.index}})
		if isGone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", l, err)
		}
		return nil
	})
}

// in opens a netlink socket of a family in a namespace, without entering it for
// longer. What f asks of another family would be asked of the wrong namespace.
func in(ns *netns.Handle, family int, f func(*netlink.Handle) error) error {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), family)
	if err != nil {
		return fmt.Errorf("netlink socket in namespace %s: %w", ns.ID(), err)
	}
	defer nl.Close()
	return f(nl)
}

// lookup returns the interface of that name, or nil.
func lookup(ns *netns.Handle, name string) (found netlink.Link, err error) {
	err = in(ns, unix.NETLINK_ROUTE, func(nl *netlink.Handle) error {
		found, err = nl.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			found, err = nil, nil
		}
		return err
	})
	return found, err
}

// containerLink is the attachment's interface in a namespace that lives on.
func containerLink(t Target) ([]Item, error) {
	if t.Container == nil || !t.OwnsIf || t.IfName == "lo" {
		return nil, nil
	}
	l, err := lookup(t.Container, t.IfName)
	if l == nil || err != nil {
		return nil, err
	}
	return []Item{link{ns: t.Container, where: "in the container", name: t.IfName, index: l.Attrs().Index}}, nil
}

// hostLinks are the host's ends of veth pairs that the result reports. The name
// alone does not make one: it must be a veth with the hardware address that the
// plugin reported, for names are used again.
func hostLinks(t Target) ([]Item, error) {
	var items []Item
	var errs []error
	for _, reported := range t.Links {
		l, err := lookup(t.Host, reported.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if l == nil || l.Type() != "veth" || !strings.EqualFold(l.Attrs().HardwareAddr.String(), reported.MAC) {
			continue
		}
		items = append(items, link{ns: t.Host, where: "on the host", name: reported.Name, index: l.Attrs().Index})
	}
	return items, errors.Join(errs...)
}

// shaper is the ifb device that the bandwidth plugin makes for egress.
func shaper(t Target) ([]Item, error) {
	if !t.Shaped {
		return nil, nil
	}
	name := ShaperName(t.Network, t.ContainerID)
	l, err := lookup(t.Host, name)
	if l == nil || err != nil || l.Type() != "ifb" {
		return nil, err
	}
	return []Item{link{ns: t.Host, where: "on the host", name: name, index: l.Attrs().Index}}, nil
}
