package caller

import (
	"context"

	"github.com/embedcni/cni/internal/netfilter"
)

type netfilterKey struct{}

// WithNetfilter returns a context with changed options for the packet filters
// that plugins open.
func WithNetfilter(ctx context.Context, change func(*netfilter.Options)) context.Context {
	o, _ := ctx.Value(netfilterKey{}).(netfilter.Options)
	change(&o)
	return context.WithValue(ctx, netfilterKey{}, o)
}

// Netfilter returns the options for the packet filters that a plugin opens.
func Netfilter(ctx context.Context) netfilter.Options {
	o, _ := ctx.Value(netfilterKey{}).(netfilter.Options)
	o.Notes = From(ctx)
	return o
}
