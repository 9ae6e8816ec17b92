package cni

import (
	"context"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
)

// share lets the built-in plugins and the sweep use the same sockets. Processes
// that they start inherit the container's lock, as plugins do.
func (op *operation) share(ctx context.Context) context.Context {
	return caller.WithNetfilter(links.WithConns(ctx, &op.Host.Conns), func(o *netfilter.Options) {
		o.Sockets = op.sockets
		if file := op.LockFile(); file != nil {
			o.Held = file
		}
	})
}
