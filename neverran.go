package cni

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// ran says which plugins an ADD has started. One that it has not has nothing to
// undo, and its DEL, which fails for the same reason, must not keep a container
// for ever: a type that was mistyped, an executable that cannot be executed.
type ran struct {
	mu      sync.Mutex
	started []string
	never   []string
}

// reset begins anew, with what is known from a record.
func (r *ran) reset(never []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started, r.never = nil, never
}

// start notes a plugin that an ADD has started.
func (r *ran) start(typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, typ)
}

// fail notes a plugin that could not be started for a verb.
func (r *ran) fail(verb, typ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if verb == "ADD" && !slices.Contains(r.never, typ) {
		r.never = append(r.never, typ)
	}
}

// settle returns, and keeps, the plugins that an ADD has not started by its end:
// those of the chain that were to run, and those that could not be delegated to.
func (r *ran) settle(before, wanted []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var never []string
	for _, typ := range slices.Concat(r.never, wanted) {
		if !slices.Contains(before, typ) && !slices.Contains(r.started, typ) && !slices.Contains(never, typ) {
			never = append(never, typ)
		}
	}
	r.never = never
	return never
}

// not reports whether it is known that the plugin was not started.
func (r *ran) not(typ string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.never, typ) && !slices.Contains(r.started, typ)
}

// noteNeverRan notes in the record which plugins of a failed ADD were not
// started, so that another process's DEL knows too.
func (a *attachment) noteNeverRan(part chain.Part) {
	never := a.ran.settle(a.types()[:part.From], a.types()[part.From:])
	if len(never) == 0 {
		return
	}
	if err := a.note(record.Entry{NeverRan: never}); err != nil {
		a.op.logger.Warn("note in the record which plugins did not run", "container", a.op.id, "error", err)
	}
}

// withoutNeverRan leaves out the errors of plugins whose ADD was not started.
func (a *attachment) withoutNeverRan(err error) error {
	return without(err, func(e *Error) bool { return e.Plugin != "" && a.ran.not(e.Plugin) })
}

// without leaves out those of the plugins' errors that are settled.
func without(err error, settled func(*Error) bool) error {
	all := pluginErrors(err)
	open := slices.DeleteFunc(slices.Clone(all), func(one error) bool {
		var e *Error
		return errors.As(one, &e) && settled(e)
	})
	if len(open) == len(all) {
		return err
	}
	return join(open...)
}

// unlessNeverRan is the error of a delegated plugin, or nil if it is that of a
// DEL after an ADD that was not started.
func (d *delegation) unlessNeverRan(verb, typ string, err error) error {
	if verb == "DEL" && d.ran.not(typ) {
		return nil
	}
	return err
}

// withoutUndone leaves out the errors of DELs after which nothing can be left, now
// that a sweep has found nothing: of an attachment whose ADD has failed, the
// sweep covers the plugin, and what the plugin delegates to is undone.
//
// A plugin can fail in DEL before it gets to that: as its own work was never
// done, or as it cannot find the plugin that it would delegate to.
func (op *operation) withoutUndone(ctx context.Context, attachments []*attachment, err error) error {
	return without(err, func(e *Error) bool {
		a := op.attachmentOf(attachments, e)
		return a != nil && a.state == record.Planned && a.undone(ctx, e)
	})
}

func (op *operation) attachmentOf(attachments []*attachment, e *Error) *attachment {
	i := slices.IndexFunc(attachments, func(a *attachment) bool {
		return a.network.config.Name == e.Network && a.IfName == e.IfName
	})
	if i < 0 {
		return nil
	}
	return attachments[i]
}

// undone reports whether nothing can be left of a plugin that failed in DEL after
// a failed ADD.
func (a *attachment) undone(ctx context.Context, e *Error) bool {
	types := a.op.failedTypes([]*attachment{a}, e)
	for _, typ := range types {
		if !covers([]*attachment{a}, []string{typ}) && !a.neverMoved(typ) {
			return false
		}
	}
	for _, p := range a.network.config.Plugins {
		ipam := p.Network.IPAM.Type
		if ipam != "" && slices.Contains(types, p.Network.Type) && !a.ipamUndone(ctx, p.Network.Type, ipam) {
			return false
		}
	}
	return true
}

// neverMoved reports whether the plugin moves a device into the container, and
// there is none: the device does not exist, or could not be moved.
func (a *attachment) neverMoved(typ string) bool {
	return known.Of(typ).Makes == known.Moved && !a.isCallers(typ) && a.hasNoDevice()
}

// ipamUndone reports whether the IPAM plugin of a plugin whose DEL failed holds
// nothing for the attachment. Unless the sweep covers it, it is asked for a DEL
// with the request of the one that failed; if it cannot be started, nor could it
// be for the ADD.
func (a *attachment) ipamUndone(ctx context.Context, typ, ipam string) bool {
	if a.ran.not(ipam) || known.Of(ipam).IPAM && !a.isCallers(ipam) {
		return true
	}
	all, err := a.providers(ctx, "DEL", ipam)
	if err != nil {
		_, recorded, _ := a.kinds.get(ipam) // if it is, it was there for the ADD
		return !recorded && errors.Is(err, invoke.ErrNotFound)
	}
	i := slices.IndexFunc(a.failed, func(c chain.Call) bool { return c.Plugin == typ })
	for _, p := range all {
		if i < 0 || !a.ipamDeleted(ctx, p, ipam, a.failed[i]) {
			return false
		}
	}
	return true
}

// ipamDeleted asks one IPAM plugin for a DEL.
func (a *attachment) ipamDeleted(ctx context.Context, p provider, ipam string, call chain.Call) bool {
	call.Plugin = ipam
	ctx, span := a.op.spans.plugin(ctx, call, p.kind)
	out, err := a.execute(ctx, call, p)
	perr := pluginError(a, call, p.kind, out, err)
	endPlugin(span, perr)
	if p.kind == PluginExecutable && errors.Is(err, invoke.ErrNotStarted) {
		return true
	}
	var e *Error
	return perr == nil || errors.As(perr, &e) && e.Code == unknownContainer
}
