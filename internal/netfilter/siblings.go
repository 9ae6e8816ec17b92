package netfilter

import (
	"context"
	"net/netip"
)

// Siblings are the other attachments of the same container that stay. They
// share the objects that the reference plugins name after the network and the
// container, or after the container alone: chains of iptables, comments of
// nftables.
type Siblings struct {
	// Owners lists all of them. A port of the host that one of them has belongs
	// to the container.
	Owners []Owner
	// Addresses are the addresses of all of them.
	Addresses []netip.Addr
	// Rules are the rules of those on the same network, in the forms of the
	// reference plugins.
	Rules Rules
	// Unknown means that Rules may be incomplete: those of a sibling could not
	// be computed.
	Unknown bool
}

type siblingsKey struct{}

// WithSiblings returns a context for calls about one attachment of a container
// that may have others. The function is called only if the siblings matter.
func WithSiblings(ctx context.Context, siblings func() Siblings) context.Context {
	return context.WithValue(ctx, siblingsKey{}, siblings)
}

func siblingsOf(ctx context.Context) Siblings {
	siblings, ok := ctx.Value(siblingsKey{}).(func() Siblings)
	if !ok {
		return Siblings{}
	}
	return siblings()
}
