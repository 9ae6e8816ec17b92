package cni

import (
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/builtin"
)

// Gateway is a gateway of a network, as a Result has it.
type Gateway struct {
	// Prefix is its address with the length of the subnet, not masked: 10.1.0.1/16.
	Prefix netip.Prefix
	// OnHost means that an ADD gives the address to an interface of the host: a bridge
	// that is a gateway, or the host's end of a ptp pair. Services of the host can be
	// reached there. Otherwise a router of the network has it, or nobody.
	OnHost bool
}

// Gateways returns the gateways of a loaded network, from its configuration: no
// container need be attached to it. They are those that the addresses in a Result have,
// in the order of the configuration. If several loaded configurations have the name,
// those of all are returned.
//
// It returns ErrNotFound if no network of that name is loaded, and ErrNoGateway if the
// configuration names no gateway, or if only a plugin knows it, such as dhcp. Then the
// Result of a container has it.
func (r *Runtime) Gateways(network string) ([]Gateway, error) {
	s := r.current.Load()
	found, err := s.find(network)
	if err != nil {
		return nil, fmt.Errorf("gateways: %w", err)
	}
	var all []Gateway
	for _, n := range found {
		some, err := builtin.Gateways(n.config, func(typ string) bool { return !s.choice.IsRegistered(typ) })
		if err != nil {
			return nil, fmt.Errorf("gateways of network %q: %w: %w", network, ErrNoGateway, err)
		}
		for _, g := range some {
			all = append(all, Gateway(g))
		}
	}
	return all, nil
}
