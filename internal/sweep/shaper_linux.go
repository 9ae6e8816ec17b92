package sweep

import (
	"context"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/links"
)

// shaper finds the ifb devices that the bandwidth plugin has made for egress.
//
// A device with the reference plugin's name is the attachment's if its result
// lists it with its hardware address. Without a listing, as after an ADD that
// was killed, it is the attachment's if the attachment limits its egress and no
// other attachment may have made it.
func (t *search) shaper(context.Context) ([]Item, error) {
	if !t.Shaper.Possible {
		return nil, nil
	}
	var items []Item
	own := bandwidth.OwnDevice(t.Network, t.ContainerID, t.IfName)
	for _, name := range []string{own, bandwidth.Device(t.Network, t.ContainerID)} {
		l, err := t.Conns.Lookup(t.Host, name)
		if l == nil || err != nil || l.Kind != "ifb" {
			if err != nil {
				return items, err
			}
			continue
		}
		ours := name == own || t.reported(*l)
		if !ours && t.Shaper.Egress {
			taken := false
			if t.Others != nil {
				if taken, err = t.Others.HaveShaper(name, l.MAC.String()); err != nil {
					return items, err
				}
			}
			ours = !taken
		}
		if ours {
			items = append(items, link{ns: t.Host, where: "on the host", name: name, index: l.Index})
		}
	}
	return items, nil
}

// reported reports whether the attachment's result has an interface of the host,
// by name and hardware address.
func (t *Target) reported(l links.Link) bool {
	return slices.ContainsFunc(t.Interface.HostEnds, func(r footprint.Link) bool {
		return r.Name == l.Name && strings.EqualFold(r.MAC, l.MAC.String())
	})
}

// NotItsShaper reports whether the host has a device of the name by which the
// reference plugin deletes, and the attachment's result does not have it.
func NotItsShaper(t Target) (bool, error) {
	l, err := t.Conns.Lookup(t.Host, bandwidth.Device(t.Network, t.ContainerID))
	return err == nil && l != nil && !t.reported(*l), err
}
