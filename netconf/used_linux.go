package netconf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// lists is how many lists that changed while they were read are put together: what one
// lacks, another has.
const lists = 5

// subnetsInUse returns the networks of all addresses of a namespace, and the destinations of the
// routes in all its tables.
func subnetsInUse(ns *netns.Handle) ([]netip.Prefix, error) {
	c, err := links.Dial(ns)
	if err != nil {
		return nil, fmt.Errorf("networks in use: %w", err)
	}
	addresses, err := union(func() (all []netip.Prefix, err error) {
		addresses, err := c.Addresses(0)
		for _, a := range addresses {
			all = append(all, a.Prefix)
		}
		return all, err
	})
	if err == nil {
		var routes []netip.Prefix
		routes, err = union(c.Destinations)
		addresses = append(addresses, routes...)
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, fmt.Errorf("networks in use: %w", err)
	}
	return mergePrefixes(addresses), nil
}

// subnetsOfLink returns the networks of the addresses of an interface, but for link-local ones,
// which every interface may have. Without an interface of that name there are none.
func subnetsOfLink(ns *netns.Handle, name string) ([]netip.Prefix, error) {
	c, err := links.Dial(ns)
	if err != nil {
		return nil, fmt.Errorf("networks of interface %s: %w", name, err)
	}
	var all []netip.Prefix
	l, err := c.Link(name)
	if links.NotFound(err) {
		return nil, c.Close()
	}
	if err == nil {
		var addresses []links.Address
		addresses, err = c.Addresses(l.Index)
		for _, a := range addresses {
			if !a.Prefix.Addr().IsLinkLocalUnicast() {
				all = append(all, a.Prefix)
			}
		}
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, fmt.Errorf("networks of interface %s: %w", name, err)
	}
	return mergePrefixes(all), nil
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
