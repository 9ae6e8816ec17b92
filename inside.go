package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/record"
)

// pluginCall is a call of a registered plugin, for who is called with its context.
type pluginCall struct {
	locks  string // the lock file of the runtime that runs it
	plugin string
	id     record.ID
	verb   string
	outer  *pluginCall // that of another runtime, inside which this one runs
}

type pluginCallKey struct{}

// withPluginCall marks the context of a registered plugin, which holds the container's
// lock and the barrier while it works.
func (d *delegation) withPluginCall(ctx context.Context) context.Context {
	if d.call.Verb == "STATUS" {
		return ctx // nothing is locked for it
	}
	outer, _ := ctx.Value(pluginCallKey{}).(*pluginCall)
	return context.WithValue(ctx, pluginCallKey{}, &pluginCall{
		locks: d.op.locks.Path(), plugin: d.call.Plugin, id: d.op.id, verb: d.call.Verb, outer: outer,
	})
}

// refuseInside refuses a call that a plugin makes which holds locks of the same
// space: it would wait for itself if it is for the same container, or for GC
// which waits for the plugin.
func (s *snapshot) refuseInside(ctx context.Context) error {
	call, _ := ctx.Value(pluginCallKey{}).(*pluginCall)
	for ; call != nil; call = call.outer {
		if call.locks != s.locks.Path() {
			continue
		}
		of := ""
		if call.id != "" {
			of = " of container " + string(call.id)
		}
		return fmt.Errorf("%w: %q, at %s%s, would wait for itself; have it delegate, or call when it has returned",
			ErrInsidePlugin, call.plugin, call.verb, of)
	}
	return nil
}
