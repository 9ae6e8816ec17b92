package runner

import (
	"context"

	"github.com/embedcni/cni/internal/firstadd"
)

// All containers on a host share the top-level chains and rules of portmap and
// firewall. The executables create them for the first container: they look, then
// create, without a lock, so two of them at a time can create the same rules twice. So
// the first ADD of a network runs alone. If the rules are flushed later, ADDs that run at
// the same time can make identical copies, which do no more than one of them.

// Begin waits until the ADD may begin: the first ADD of a network runs alone for a
// moment if two of its plugins at the same time could create shared rules twice.
func (r *Runner) Begin(ctx context.Context, key firstadd.Key) (*firstadd.First, error) {
	key.Types = func() []string { return r.contended(ctx) }
	return r.First.Begin(ctx, key)
}

// contended returns the types in the chain whose plugins must not create at the same time
// what containers share: executables, and plugins that the caller has registered.
func (r *Runner) contended(ctx context.Context) []string {
	var types []string
	for _, p := range r.Network.Plugins {
		typ := p.Network.Type
		c, _, _ := r.Plugins.get(typ)
		if kind := Kind(c.Kind); kind != BuiltIn && (kind != Executable || r.References.races(ctx, r.Root, typ, c.Path, p.Bytes)) {
			types = append(types, typ)
		}
	}
	return types
}
