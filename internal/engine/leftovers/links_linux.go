package leftovers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/netns"
)

// inKernel are the finders of what is in a kernel's namespaces.
func (t *Target) inKernel() []finder { return []finder{t.containerLink, t.hostEnds, t.shaper} }

// deletion is an interface to be deleted, by its number: its name may be another's by then.
func deletion(ns *netns.Handle, where, name string, index int) Item {
	text := fmt.Sprintf("interface %s %s", name, where)
	return Item{text, func(context.Context) error {
		return dialed(ns, func(conn *links.Conn) error {
			if err := conn.Delete(index); err != nil {
				return fmt.Errorf("delete %s: %w", text, err)
			}
			return nil
		})
	}}
}

// containerLink finds the attachment's interface in a namespace that lives on. By its
// name alone it is found only if nothing else is known of it.
func (t *Target) containerLink(context.Context) ([]Item, error) {
	if t.Footprint.Interface.Device != nil {
		return t.device()
	}
	if t.Container == nil || !t.Footprint.Interface.Made || t.Footprint.IfName == "lo" {
		return nil, nil
	}
	l, err := t.Conns.Lookup(t.Container, t.Footprint.IfName)
	if l == nil || err != nil {
		return nil, err
	}
	return []Item{deletion(t.Container, "in the container", t.Footprint.IfName, l.Index)}, nil
}

// hostEnds finds the host's ends of veth pairs that the result reports. The name alone
// does not identify one, as names are used again: it must be a veth with the hardware
// address that the plugin reported.
func (t *Target) hostEnds(context.Context) ([]Item, error) {
	var items []Item
	var errs []error
	for _, reported := range t.Footprint.Interface.HostEnds {
		l, err := t.Conns.Lookup(t.Host, reported.Name)
		errs = append(errs, err)
		if err == nil && l != nil && l.Kind == "veth" && strings.EqualFold(l.MAC.String(), reported.MAC) {
			items = append(items, deletion(t.Host, "on the host", reported.Name, l.Index))
		}
	}
	return items, joined.Errors(errs...)
}

// shaper finds the ifb devices that the bandwidth plugin has made for egress.
//
// A device with the reference plugin's name is the attachment's if its result
// lists it with its hardware address. Without a listing, as after an ADD that
// was killed, it is the attachment's if the attachment limits its egress and no
// other attachment may have made it.
func (t *Target) shaper(context.Context) (items []Item, err error) {
	if !t.Footprint.Shaper.Possible {
		return nil, nil
	}
	own := bandwidth.OwnDevice(t.Footprint.Network, t.Footprint.ContainerID, t.Footprint.IfName)
	for _, name := range []string{own, bandwidth.Device(t.Footprint.Network, t.Footprint.ContainerID)} {
		l, err := t.Conns.Lookup(t.Host, name)
		if err != nil {
			return items, err
		}
		if l == nil || l.Kind != "ifb" {
			continue
		}
		ours := name == own || t.Footprint.Interface.reports(*l)
		if !ours && t.Footprint.Shaper.Egress {
			taken, err := t.Others.HaveShaper(name, l.MAC.String())
			if err != nil {
				return items, err
			}
			ours = !taken
		}
		if ours {
			items = append(items, deletion(t.Host, "on the host", name, l.Index))
		}
	}
	return items, nil
}

// reports reports whether the attachment's result has an interface of the host, by name
// and hardware address.
func (i Interface) reports(l links.Link) bool {
	return slices.ContainsFunc(i.HostEnds, func(r Link) bool {
		return r.Name == l.Name && strings.EqualFold(r.MAC, l.MAC.String())
	})
}

// NotItsShaper reports whether the host has a device of the name by which the
// reference plugin deletes, and the attachment's result does not have it.
func (t *Target) NotItsShaper() (bool, error) {
	l, err := t.Conns.Lookup(t.Host, bandwidth.Device(t.Footprint.Network, t.Footprint.ContainerID))
	return err == nil && l != nil && !t.Footprint.Interface.reports(*l), err
}

// flushFlows makes conntrack forget the UDP flows that it sends to the target's
// addresses, if one of the forwarded ports may be UDP: the next container that
// takes the port would never see them. It returns the number of flows.
//
// If there are any, it asks which addresses are in use by others, whose flows stay.
func (t *Target) flushFlows() (flushed uint, err error) {
	if !t.Footprint.Rules.UDP || t.Host == nil {
		return 0, nil
	}
	var errs []error
	asked := sync.OnceValues(t.InUse)
	for _, addr := range t.Footprint.Addresses {
		// Replies come from the container's address, wherever the request was sent to.
		n, err := links.Forget(t.Host, addr.Is6(), links.Flows{From: addr, Keep: func() (bool, error) {
			taken, err := asked()
			return slices.Contains(taken, addr), err
		}})
		flushed += n
		if err != nil {
			errs = append(errs, fmt.Errorf("flush UDP flows to %s: %w", addr, err))
		}
	}
	return flushed, joined.Errors(errs...)
}
