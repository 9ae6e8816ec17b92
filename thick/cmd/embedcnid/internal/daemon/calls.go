package daemon

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// calls is the Backend with what this daemon adds to a call.
type calls struct {
	*backend.Backend
	daemon *daemon
}

var (
	_ server.Ledger  = (*calls)(nil)
	_ server.Planner = (*calls)(nil)
)

// Plan finds the networks of a call. An ADD fails here if one of them does not exist.
func (c *calls) Plan(ctx context.Context, verb string, r *server.Request) (server.Use, error) {
	use, err := c.Backend.Plan(ctx, verb, r)
	if verb == "ADD" {
		c.report(ctx, r, err)
	}
	return use, err
}

// Add attaches an interface.
func (c *calls) Add(ctx context.Context, r *server.Request) (types.Result, error) {
	result, err := c.Backend.Add(ctx, r)
	c.report(ctx, r, err)
	return result, err
}

// report has the pod learn why an ADD failed. What may succeed a moment later, and a pod that
// is gone, concern nobody.
func (c *calls) report(ctx context.Context, r *server.Request, err error) {
	var said *types.Error
	passes := errors.As(err, &said) && (said.Code == types.ErrTryAgainLater || said.Code == types.ErrUnknownContainer)
	if err != nil && !passes && ctx.Err() == nil && c.daemon.cluster != nil {
		c.daemon.cluster.report(r, err)
	}
}

// GC does nothing unless the configuration says so: the attachments that are valid for one
// runtime need not be all that are alive.
func (c *calls) GC(ctx context.Context, r *server.Request) error {
	if !c.daemon.config.Load().GC {
		c.daemon.log.Info("a GC call was not carried out; see the key gc", "network", r.Network, "valid", len(r.Valid))
		return nil
	}
	return c.Backend.GC(ctx, r)
}

// observe counts a request, and logs a call: one that was refused with its reason.
func (d *daemon) observe(o server.Observation) {
	d.metrics.Request(o)
	if o.Verb == "" && o.Err == nil {
		return // a probe
	}
	attrs := []any{"verb", o.Verb, "container", o.ContainerID, "interface", o.IfName, "network", o.Network}
	if o.Pod.Name != "" {
		attrs = append(attrs, "pod", o.Pod.Namespace+"/"+o.Pod.Name)
	}
	if o.Trace.IsValid() {
		attrs = append(attrs, "trace_id", o.Trace.String())
	}
	attrs = append(attrs, "queued", o.Queued, "took", o.Duration)
	if o.Err == nil {
		d.log.Debug("call", attrs...)
		return
	}
	d.log.Warn("call refused", append(attrs, "code", o.Code, "error", o.Err)...)
}
