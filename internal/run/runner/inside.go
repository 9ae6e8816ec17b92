package runner

import (
	"context"

	"github.com/embedcni/cni/internal/store/record"
)

// PluginCall is a call of a registered plugin.
type PluginCall struct {
	Plugin, Verb string
	ContainerID  record.ID
}

// insideKey is the key of a PluginCall in the plugin's context: the path of the lock file
// of the runtime that runs it. A plugin may call another runtime.
type insideKey string

// withPluginCall marks the context of a registered plugin, which holds the container's
// lock and the barrier while it works. A STATUS locks nothing.
func (e *execution) withPluginCall(ctx context.Context) context.Context {
	if e.call.Verb == "STATUS" {
		return ctx
	}
	return context.WithValue(ctx, insideKey(e.Runner.Runtime.Locks.Path()), &PluginCall{Plugin: e.call.Plugin, ContainerID: e.Runner.ContainerID, Verb: e.call.Verb})
}

// Inside returns the call of a registered plugin that was given the context and holds
// locks of the lock file; nil if there is none.
func Inside(ctx context.Context, locks string) *PluginCall {
	call, _ := ctx.Value(insideKey(locks)).(*PluginCall)
	return call
}
