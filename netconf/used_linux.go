package netconf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/netns"
)

// lists is how many lists that changed while they were read are put together: what one
// lacks, another has.
const lists = 5

// subnetsInUse returns the networks of all addresses of a namespace, with the destinations of
// the routes in all its tables, and the networks of the addresses of a bridge. Link-local ones,
// which every interface may have, are not the bridge's. Without a bridge of that name it has none.
func subnetsInUse(ns *netns.Handle, bridge string) (all, bridged []netip.Prefix, err error) {
	var conns *links.Conns
	err = conns.Do(ns, func(c *links.Conn) error {
		addresses, err := addressesOf(c, 0)
		if err != nil {
			return err
		}
		routes, err := union(c.Destinations)
		if err != nil {
			return err
		}
		all = mergePrefixes(addresses, routes)
		l, err := c.Link(bridge)
		if err == nil {
			bridged, err = addressesOf(c, l.Index)
		}
		if links.NotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("networks in use: %w", err)
	}
	bridged = slices.DeleteFunc(bridged, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
	return all, mergePrefixes(bridged), nil
}

// addressesOf returns the addresses of an interface; 0 stands for all.
func addressesOf(c *links.Conn, index int) ([]netip.Prefix, error) {
	return union(func() (all []netip.Prefix, err error) {
		found, err := c.Addresses(index)
		for _, a := range found {
			all = append(all, a.Prefix)
		}
		return all, err
	})
}

func union(list func() ([]netip.Prefix, error)) (all []netip.Prefix, err error) {
	for range lists {
		some, err := list()
		all = append(all, some...)
		if !errors.Is(err, links.ErrTorn) {
			return all, err
		}
	}
	return all, nil
}
