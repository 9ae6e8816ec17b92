package sweep

import (
	"context"
	"strings"

	"github.com/embedcni/cni/internal/links"
)

// shaper finds the ifb devices that the bandwidth plugin has made for egress.
//
// One of the reference plugin's name is the attachment's if its result has it,
// with its hardware address. Without that, as after an ADD that was killed, it is
// if the attachment limits its egress and no other one may have made it.
func shaper(ctx context.Context, t Target) ([]Item, error) {
	if !t.Shaped {
		return nil, nil
	}
	var items []Item
	own := OwnShaperName(t.Network, t.ContainerID, t.IfName)
	for _, name := range []string{own, ShaperName(t.Network, t.ContainerID)} {
		l, err := t.sockets.lookup(ctx, t.Host, name)
		if l == nil || err != nil || l.Kind != "ifb" {
			if err != nil {
				return items, err
			}
			continue
		}
		ours := name == own || t.reported(*l)
		if !ours && t.Egress {
			taken := false
			if t.OthersShaper != nil {
				if taken, err = t.OthersShaper(name, l.MAC.String()); err != nil {
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
func (t Target) reported(l links.Link) bool {
	for _, r := range t.Links {
		if r.Name == l.Name && strings.EqualFold(r.MAC, l.MAC.String()) {
			return true
		}
	}
	return false
}

// NotItsShaper reports whether the host has a device of the name by which the
// reference plugin deletes, and the attachment's result does not have it.
func NotItsShaper(ctx context.Context, t Target) (bool, error) {
	t.sockets = &sockets{}
	l, err := t.sockets.lookup(ctx, t.Host, ShaperName(t.Network, t.ContainerID))
	if cerr := t.sockets.close(); err == nil {
		err = cerr
	}
	return err == nil && l != nil && !t.reported(*l), err
}
