package runner

import (
	"context"

	"github.com/embedcni/cni/internal/record"
)

// PluginCall is a call of a registered plugin.
type PluginCall struct {
	Plugin, Verb string
	ContainerID  record.ID

	locks string      // path of the lock file of the runtime that runs it
	outer *PluginCall // of another runtime, inside which this one runs
}

type pluginCallKey struct{}

// withPluginCall marks the context of a registered plugin, which holds the container's
// lock and the barrier while it works. A STATUS locks nothing.
func (r *Runner) withPluginCall(ctx context.Context, verb, typ string) context.Context {
	if verb == "STATUS" {
		return ctx
	}
	outer, _ := ctx.Value(pluginCallKey{}).(*PluginCall)
	return context.WithValue(ctx, pluginCallKey{}, &PluginCall{
		Plugin: typ, ContainerID: r.ContainerID, Verb: verb, locks: r.Locks.Path(), outer: outer,
	})
}

// Inside returns the call of a registered plugin that was given the context and holds
// locks of the lock file; nil if there is none.
func Inside(ctx context.Context, locks string) *PluginCall {
	call, _ := ctx.Value(pluginCallKey{}).(*PluginCall)
	for call != nil && call.locks != locks {
		call = call.outer
	}
	return call
}
