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

// subnetsInUse returns the networks of all addresses of a namespace, and the destinations of the
// routes in all its tables.
func subnetsInUse(ns *netns.Handle) ([]netip.Prefix, error) {
	var addresses, routes []netip.Prefix
	var conns *links.Conns
	err := conns.Do(ns, func(c *links.Conn) (err error) {
		addresses, err = union(func() ([]netip.Prefix, error) { return prefixesOf(c.Addresses(0)) })
		if err == nil {
			routes, err = union(c.Destinations)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("networks in use: %w", err)
	}
	return mergePrefixes(addresses, routes), nil
}

// subnetsOfLink returns the networks of the addresses of an interface, but for link-local ones,
// which every interface may have. Without an interface of that name there are none.
func subnetsOfLink(ns *netns.Handle, name string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	var conns *links.Conns
	err := conns.Do(ns, func(c *links.Conn) error {
		l, err := c.Link(name)
		if err == nil {
			all, err = prefixesOf(c.Addresses(l.Index))
		}
		return err
	})
	if err != nil && !links.NotFound(err) {
		return nil, fmt.Errorf("networks of interface %s: %w", name, err)
	}
	return mergePrefixes(slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })), nil
}

func prefixesOf(addresses []links.Address, err error) (all []netip.Prefix, _ error) {
	for _, a := range addresses {
		all = append(all, a.Prefix)
	}
	return all, err
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
