package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Remove detaches the container.
func (eng *Engine) Remove(ctx context.Context, c *Call) error {
	ctx = context.WithoutCancel(ctx)
	host, err := validateRemove(eng, c)
	if err != nil {
		return joined.Errorf("remove container %q: %w", c.ID, err)
	}
	op := &operation{eng: eng, c: eng.Store.New(c.ID, host)}
	if err := op.lockToRemove(ctx, container.Access{}); err != nil {
		return leftover(c.ID, err)
	}
	defer op.end()
	reaper{eng}.request(op.c.Place.Host, false)
	damage, err := op.load()
	if err == nil {
		err = op.recall(c, damage, true)
	}
	if err != nil {
		return leftover(c.ID, err)
	}
	if err := op.c.Recorded.EndUse(); err != nil { // a full disk must not keep a container attached
		op.log().Warn("note in the record that the network namespace goes too", "error", err)
	}
	return op.tearDown(ctx, op.attachments)
}

// validateRemove checks the caller's parameters before anything is touched, the
// lock file included, and opens the namespace in which plugins run. A whole
// record lists the container's attachments; otherwise they are planned here.
func validateRemove(eng *Engine, c *Call) (*container.Host, error) {
	rec, err := LoadRecord(eng.Store.Records, c.ID)
	switch {
	case errors.As(err, new(*outcome.RecordError)):
		err = nil // recall returns it
	case rec != nil && err == nil:
		for _, sel := range c.Selected { // neither on the container's record nor loaded
			if sel.Unknown != nil && !slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool { return n.Network == sel.Network }) {
				return nil, sel.Unknown
			}
		}
	default:
		err = c.Err
	}
	if err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	if _, err := host.Validate(c.Path, "DEL"); err != nil {
		return nil, Join(err, host.Close())
	}
	return host, nil
}

// errNotYet: a removal failed not long ago.
var errNotYet = errors.New("not tried again yet")

// finish removes attachments whose removal has failed before, unless that was
// just now.
func (op *operation) finish(ctx context.Context, going attachments) error {
	for _, a := range going {
		n := a.entry()
		if n == nil {
			continue
		}
		if wait := n.RetryIn(time.Now()); wait > 0 {
			return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), n.Failures, n.LastError)
		}
	}
	return op.tearDown(context.WithoutCancel(ctx), going)
}

// without removes the plugins' errors that are settled.
func without(err error, settled func(*outcome.Error) bool) error {
	all := pluginErrors(err)
	open := slices.DeleteFunc(slices.Clone(all), settled)
	if len(open) == len(all) {
		return err
	}
	return Join(asErrors(open)...)
}

func asErrors(all []*outcome.Error) (errs []error) {
	for _, e := range all {
		errs = append(errs, e)
	}
	return errs
}

// withoutUndone removes the errors of DELs that can have left nothing behind,
// after a sweep has found nothing: the attachment's ADD failed, the sweep covers
// the plugin, and the work of its delegates is undone.
//
// A plugin can fail in DEL before it calls its delegate, because its own work
// was never done, or because it cannot find the delegate.
func (t *teardown) withoutUndone(ctx context.Context) error {
	return without(t.delErr, func(e *outcome.Error) bool {
		a := t.of(e)
		return a != nil && a.progress.state == record.Planned && t.undone(ctx, a, e)
	})
}

// of returns the attachment that an Error is about, or nil.
func (t *teardown) of(e *outcome.Error) *attachment {
	i := slices.IndexFunc(t.going, func(a *attachment) bool {
		return a.plan.Network.Config.Name == e.Network && a.plan.IfName == e.IfName
	})
	if i < 0 {
		return nil
	}
	return t.going[i]
}

// undone reports whether a plugin that failed in DEL after a failed ADD can have
// left nothing behind.
func (t *teardown) undone(ctx context.Context, a *attachment, e *outcome.Error) bool {
	d, types := a.described(), t.failedTypes(e)
	for _, typ := range types {
		if d.Covers(typ) {
			continue
		}
		// Or it moves a device into the container, which does not exist or could not be
		// moved.
		if conflist.Known(typ).Makes != conflist.Moved || d.Ran.IsCallers(typ) || !a.op.c.Place.HasNoDevice(a.plan.NetNS, a.plan.IfName) {
			return false
		}
	}
	for i, p := range a.plan.Network.Config.Plugins {
		ipam := d.List.Plugins[i].Network.IPAM.Type
		if ipam != "" && slices.Contains(types, p.Network.Type) && !ipamUndone(ctx, a, p.Network.Type, ipam) {
			return false
		}
	}
	return true
}

// ipamUndone reports whether the IPAM plugin of a plugin whose DEL failed holds
// nothing for the attachment. Unless the sweep covers it, it is asked for a DEL
// with the request of the failed one. If it cannot be started, it could not be
// started for the ADD either.
func ipamUndone(ctx context.Context, a *attachment, typ, ipam string) bool {
	return a.plugins.NotRun(ipam) || a.described().CoversIPAM(ipam) || a.runner().DeletesIPAM(ctx, typ, ipam)
}

// failedTypes returns the types of the plugins whose work may be unfinished according
// to the Error of a DEL. A batched change without a plugin may be that of any plugin in
// the chain.
func (t *teardown) failedTypes(e *outcome.Error) []string {
	if errors.As(e.Err, new(*leftovers.SiblingError)) {
		return []string{""} // the sweep does not cover attachments that stay
	}
	if e.Plugin != "" || !errors.As(e.Err, new(*runner.FlushError)) {
		return []string{e.Plugin}
	}
	if a := t.of(e); a != nil {
		return a.runner().Types()
	}
	return []string{""} // unknown
}

// areCovered reports whether a sweep that found nothing compensates for failed DELs: it
// covers the plugins that failed, for each attachment, and all IPAM plugins. The
// leftovers of other plugins are unknown, so their failed DEL remains a failure.
func (t *teardown) areCovered(err error) bool {
	var types []string
	for _, e := range pluginErrors(err) {
		types = append(types, t.failedTypes(e)...)
	}
	for _, a := range t.going {
		d := a.described()
		if slices.ContainsFunc(types, func(typ string) bool { return !d.Covers(typ) }) {
			return false
		}
		for _, p := range d.List.Plugins {
			if ipam := p.Network.IPAM.Type; ipam != "" && !d.CoversIPAM(ipam) {
				return false
			}
		}
	}
	return len(types) > 0
}
