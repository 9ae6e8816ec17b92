package netfilter

import (
	"context"
	"os"
)

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

type heldKey struct{}

// WithHeld returns a context in which the processes that are started have the
// file open. As a lock it stays held until they have ended, should the caller be
// killed: what they were told to do they do.
func WithHeld(ctx context.Context, f *os.File) context.Context {
	return context.WithValue(ctx, heldKey{}, f)
}

func heldFrom(ctx context.Context) []*os.File {
	if f, _ := ctx.Value(heldKey{}).(*os.File); f != nil {
		return []*os.File{f}
	}
	return nil
}
