package cni

import (
	"context"
	"errors"
	"slices"

	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// withoutNeverRan removes the errors of plugins whose ADD was not started.
func (a *attachment) withoutNeverRan(err error) error {
	return without(err, func(e *Error) bool { return e.Plugin != "" && a.plugins.NotRun(e.Plugin) })
}

// without removes the plugins' errors that are settled.
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

// withoutUndone removes the errors of DELs that can have left nothing behind,
// after a sweep has found nothing: the attachment's ADD failed, the sweep covers
// the plugin, and the work of its delegates is undone.
//
// A plugin can fail in DEL before it calls its delegate, because its own work
// was never done, or because it cannot find the delegate.
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

// undone reports whether a plugin that failed in DEL after a failed ADD can have
// left nothing behind.
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
	return known.Of(typ).Makes == known.Moved && !a.described().IsCallers(typ) && a.hasNoDevice()
}

// ipamUndone reports whether the IPAM plugin of a plugin whose DEL failed holds
// nothing for the attachment. Unless the sweep covers it, it is asked for a DEL
// with the request of the failed one. If it cannot be started, it could not be
// started for the ADD either.
func (a *attachment) ipamUndone(ctx context.Context, typ, ipam string) bool {
	if a.plugins.NotRun(ipam) || known.Of(ipam).IPAM && !a.described().IsCallers(ipam) {
		return true
	}
	return a.runner().DeletesIPAM(ctx, typ, ipam)
}

// failedTypes returns the types of the plugins whose work may be unfinished
// according to an Error. A batched change may be that of any plugin in the
// chain.
func (op *operation) failedTypes(attachments []*attachment, e *Error) []string {
	if errors.As(e.Err, new(*mendError)) {
		return []string{""} // the sweep does not cover attachments that stay
	}
	if !errors.As(e.Err, new(*runner.FlushError)) {
		return []string{e.Plugin}
	}
	if a := op.attachmentOf(attachments, e); a != nil {
		return a.runner().Types()
	}
	return []string{""} // unknown
}
