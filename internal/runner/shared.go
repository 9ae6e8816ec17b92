package runner

import (
	"context"
	"strings"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
)

// All containers on a host share the top-level chains of portmap and firewall. The
// executables create them for the first container, and again after a flush: they look, and
// then create, without a lock, so that of two at a time one may fail. Where they are not
// there, one executable of the type runs alone. Whatever else executables may create twice,
// the first ADD of a network does alone.

// Begin waits until the ADD may begin: the first ADD of a network runs alone for a
// moment if two of its plugins at the same time could create shared objects twice.
func (r *Runner) Begin(ctx context.Context, key FirstKey) (end func(ok bool) error, err error) {
	return r.First.Begin(ctx, key, func() []string { return r.contended(ctx) })
}

// contended returns the types in the chain whose plugins must not create at the same time
// what containers share: executables, and plugins that the caller has registered.
func (r *Runner) contended(ctx context.Context) []string {
	var types []string
	for _, p := range r.Network.Plugins {
		typ := p.Network.Type
		c, _, _ := r.Plugins.Get(typ)
		if kind := Kind(c.Kind); kind != BuiltIn && (kind != Executable || r.References.races(ctx, r.Root, typ, c.Path, p.Bytes)) {
			types = append(types, typ)
		}
	}
	return types
}

// alone waits until the ADD of an executable may create the chains that containers share,
// for a moment at most. end says whether it succeeded.
func (r *Runner) alone(ctx context.Context, call chain.Call, p Provider) (end func(ok bool) error, err error) {
	rules := known.Of(call.Plugin).Rules
	if call.Verb != "ADD" || p.Kind != Executable || r.Host == nil || rules != known.HostPorts && rules != known.Forward {
		return func(bool) error { return nil }, nil
	}
	of := strings.Join([]string{call.Plugin, r.Host.ID().String(), string(r.Network.Bytes)}, "\n")
	return r.First.Once(ctx, call.Plugin, of, func() bool {
		there, err := netfilter.HasShared(ctx, r.Host, r.Given.Filters, rules == known.Forward, call.Stdin)
		if err != nil {
			r.Logger.Debug("whether the chains that containers share are there is not known", "plugin", call.Plugin, "error", err)
		}
		return there || err != nil
	})
}
