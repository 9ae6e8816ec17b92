package netfilter

import "context"

type socketsKey struct{}

// WithSockets returns a context in which the nftables backends use the sockets,
// and open none of their own where there is one for the namespace.
func WithSockets(ctx context.Context, s *Sockets) context.Context {
	return context.WithValue(ctx, socketsKey{}, s)
}

func socketsFrom(ctx context.Context) *Sockets {
	s, _ := ctx.Value(socketsKey{}).(*Sockets)
	return s
}
