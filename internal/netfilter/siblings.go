package netfilter

import (
	"context"
	"net/netip"
)

// Siblings are the other attachments of the same container that stay. What the
// reference plugins name after the network and the container, or after the
// container alone, is theirs as well: chains of iptables, comments of nftables.
type Siblings struct {
	// Owners are all of them. A port of the host that one of them has is the
	// container's.
	Owners []Owner
	// Addresses are those that they have.
	Addresses []netip.Addr
	// Rules are what those on the same network have in the forms of the reference
	// plugins.
	Rules Rules
	// Unknown says that there may be more of these rules: those of a sibling could
	// not be computed.
	Unknown bool
}

type siblingsKey struct{}

// WithSiblings returns a context for calls about one attachment of a container
// that may have others. The function is called when it matters which there are.
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
