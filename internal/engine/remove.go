package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/spans"
)

// remove detaches the container.
func (eng *Engine) Remove(ctx context.Context, c *Call) error {
	ctx = context.WithoutCancel(ctx)
	op := &operation{eng: eng}
	host, err := op.validateRemove(c)
	if err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, err)
	}
	if _, err := op.open(ctx, c.ID, host, container.Access{}); err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, leftover(c.ID, err))
	}
	defer op.end()
	reaper{eng}.request(op.c.Host, false)
	damage, err := op.load()
	if err == nil {
		err = op.recall(c, damage, true)
	}
	if err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, leftover(c.ID, err))
	}
	if err := op.c.EndUse(); err != nil { // a full disk must not keep a container attached
		op.log().Warn("note in the record that the network namespace goes too", "error", err)
	}
	return op.tearDown(ctx, op.attachments)
}

// validateRemove checks the caller's parameters before anything is touched, the
// lock file included, and opens the namespace in which plugins run. A whole
// record lists the container's attachments; otherwise they are planned here.
func (op *operation) validateRemove(c *Call) (*hostns.NetNS, error) {
	rec, err := LoadRecord(op.eng.Store.Records, c.ID)
	switch {
	case errors.As(err, new(*RecordError)):
		err = nil // recall returns it
	case rec != nil && err == nil:
		err = c.validateSelected(rec)
	default:
		err = c.Err
	}
	if err != nil {
		return nil, err
	}
	host, err := op.eng.openHost()
	if err != nil {
		return nil, err
	}
	if _, err := host.Validate(c.Path, "DEL"); err != nil {
		return nil, Join(err, host.Close())
	}
	return host, nil
}

// validateSelected refuses a network that is neither on the container's record
// nor loaded.
func (c *Call) validateSelected(rec *record.Record) error {
	for _, sel := range c.Selected {
		recorded := slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool { return n.Network == sel.Network })
		if sel.Unknown != nil && !recorded {
			return sel.Unknown
		}
	}
	return nil
}

// tearDown runs the DELs, sweeps their leftovers, and verifies that nothing
// remains. Then it deletes the record; otherwise the record stays, with the
// reason, for the next attempt.
func (op *operation) tearDown(ctx context.Context, going attachments) error {
	deletions.Begin()
	defer deletions.End()
	op.removal.leaving = going.names()
	displaced := going.displaced()
	if err := op.takeCharge(going); err != nil {
		return leftover(op.c.ID, err)
	}
	var delErr error
	if op.c.HostGone {
		delErr = going.withoutHost()
	} else {
		delErr = going.detach(ctx)
	}
	op.syncReleases(going)
	swept, clean := going.sweep(ctx)
	open := delErr
	if clean && delErr != nil && !op.c.HostGone {
		open = going.withoutUndone(ctx, delErr)
	}
	switch {
	case clean && (open == nil || going.areCovered(open)):
		if err := op.forget(going); err != nil {
			// Only the record remains, for example because the disk has become
			// read-only. The next Recover removes it.
			op.log().Error("delete the attachment record", "error", err)
		}
		op.giveBack(ctx, displaced)
		if delErr == nil {
			return nil
		}
		op.log().Warn("DEL failed, and nothing is left", "error", delErr)
		going.uncache()
		if op.eng.opts.TeardownErrors {
			return delErr
		}
		return nil
	default:
		return going.stay(delErr, swept)
	}
}

// displaced returns the addresses of which an ADD has taken over the masquerading.
func (all attachments) displaced() (addrs []netip.Addr) {
	for _, a := range all {
		if a.facts.Get(netfilter.DisplacedFact) != nil {
			addrs = append(addrs, leftovers.Addresses(json.RawMessage(a.progress.partial))...)
		}
	}
	return addrs
}

// giveBack repairs the containers whose addresses this one had taken over: an address may be
// that of two containers, on networks of their own.
func (op *operation) giveBack(ctx context.Context, addrs []netip.Addr) {
	if len(addrs) == 0 || op.c.HostGone {
		return
	}
	var ids []record.ID
	host := op.c.Host.String()
	err := op.eng.Store.Records.Each(func(f record.Found) bool {
		if f.Err == nil && f.Record.ContainerID != op.c.ID && f.Record.Host == host && f.Record.Boot == op.eng.Store.Boot &&
			slices.ContainsFunc(f.Record.Attachments, func(n record.Attachment) bool {
				return n.State == record.Added && slices.ContainsFunc(leftovers.Addresses(n.Result), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
			}) {
			ids = append(ids, f.Record.ContainerID)
		}
		return true
	})
	for _, report := range op.eng.RepairAll(ctx, ids, RepairOptions{Unheld: true}) {
		err = Join(err, report.err())
	}
	if err != nil {
		op.log().Warn("containers with an address of a removed one may lack masquerading: Repair makes it", "error", err)
	}
}

// uncache deletes attachments from libcni's cache that stayed there because a
// DEL failed.
func (all attachments) uncache() {
	for _, a := range all {
		if err := a.cached().Forget(); err != nil {
			a.op.log().Warn("forget a removed attachment", "network", a.plan.Network.Config.Name, "error", err)
		}
	}
}

// takeCharge records the process that works on the container from now on, and
// the attachments that it removes: if it is killed, the other attachments must
// not count as broken. A full disk must not keep a container attached.
func (op *operation) takeCharge(going attachments) error {
	if op.c.Record == nil {
		return nil
	}
	self, err := op.eng.Store.Identity()
	if err != nil {
		return err
	}
	life := op.eng.Store.Life()
	for _, a := range going {
		if err := a.append(record.Entry{Runtime: self, Life: life, PIDNS: op.eng.Store.PIDNS, State: record.Deleting}); err != nil {
			op.log().Warn("note a removal in the record", "error", err)
		}
	}
	return nil
}

// detach runs the DELs of all attachments, last first, and returns all errors.
func (all attachments) detach(ctx context.Context) error {
	var errs []error
	for _, a := range all {
		a.restoreDevice()
	}
	for _, a := range slices.Backward(all) {
		errs = append(errs, a.del(ctx))
	}
	return Join(errs...)
}

// del runs the DELs of one network. It returns no errors of plugins whose ADD was not
// started.
func (a *attachment) del(ctx context.Context) (err error) {
	ctx, span := spans.Network(ctx, "cni.detachNetwork", a.plan.Network.Config.Name, a.plan.IfName)
	defer func() { spans.End(span, err) }()
	err = a.errors("DEL", a.chain().Del(ctx, &a.plan.Attachment, a.progress.partial))
	return without(err, func(e *Error) bool { return e.Plugin != "" && a.plugins.NotRun(e.Plugin) })
}

// withoutHost is detach if the namespace in which the plugins ran is gone, and
// with it everything that they made there. No plugin runs in the caller's
// namespace, where the same names and addresses can be others'. The sweep
// removes files, and an error names the plugins that may have files which the
// sweep does not know.
func (all attachments) withoutHost() error {
	var errs []error
	for _, a := range all {
		for _, p := range a.plan.Network.Config.Plugins {
			for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if k := known.Of(typ); typ == "" || k.IPAM || k.Swept && !a.described().IsCallers(typ) {
					continue
				}
				e := a.error("DEL", ErrHostNetNS)
				e.Plugin, e.Msg = typ, "not asked: the host network namespace that it ran in is gone; CleanUp forgets the attachment"
				errs = append(errs, e)
			}
		}
	}
	all.uncache()
	return Join(errs...)
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
	return Join(open...)
}

// withoutUndone removes the errors of DELs that can have left nothing behind,
// after a sweep has found nothing: the attachment's ADD failed, the sweep covers
// the plugin, and the work of its delegates is undone.
//
// A plugin can fail in DEL before it calls its delegate, because its own work
// was never done, or because it cannot find the delegate.
func (all attachments) withoutUndone(ctx context.Context, err error) error {
	return without(err, func(e *Error) bool {
		a := all.of(e)
		return a != nil && a.progress.state == record.Planned && a.undone(ctx, e)
	})
}

// of returns the attachment that an Error is about, or nil.
func (all attachments) of(e *Error) *attachment {
	i := slices.IndexFunc(all, func(a *attachment) bool {
		return a.plan.Network.Config.Name == e.Network && a.plan.IfName == e.IfName
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// undone reports whether a plugin that failed in DEL after a failed ADD can have
// left nothing behind.
func (a *attachment) undone(ctx context.Context, e *Error) bool {
	d, types := a.described(), attachments{a}.failedTypes(e)
	for _, typ := range types {
		if d.Covers(typ) {
			continue
		}
		// Or it moves a device into the container, which does not exist or could not be
		// moved.
		if known.Of(typ).Makes != known.Moved || d.IsCallers(typ) || !a.op.c.HasNoDevice(a.plan.NetNS, a.plan.IfName) {
			return false
		}
	}
	for _, p := range a.plan.Network.Config.Plugins {
		ipam := p.Network.IPAM.Type
		if ipam != "" && slices.Contains(types, p.Network.Type) && !a.ipamUndone(ctx, p.Network.Type, ipam) {
			return false
		}
	}
	return true
}

// ipamUndone reports whether the IPAM plugin of a plugin whose DEL failed holds
// nothing for the attachment. Unless the sweep covers it, it is asked for a DEL
// with the request of the failed one. If it cannot be started, it could not be
// started for the ADD either.
func (a *attachment) ipamUndone(ctx context.Context, typ, ipam string) bool {
	return a.plugins.NotRun(ipam) || a.described().CoversIPAM(ipam) || a.runner().DeletesIPAM(ctx, typ, ipam)
}

// failedTypes returns the types of the plugins whose work may be unfinished according
// to the Error of a DEL. A batched change without a plugin may be that of any plugin in
// the chain.
func (all attachments) failedTypes(e *Error) []string {
	if errors.As(e.Err, new(*leftovers.SiblingError)) {
		return []string{""} // the sweep does not cover attachments that stay
	}
	if e.Plugin != "" || !errors.As(e.Err, new(*runner.FlushError)) {
		return []string{e.Plugin}
	}
	if a := all.of(e); a != nil {
		return a.runner().Types()
	}
	return []string{""} // unknown
}

// areCovered reports whether a sweep that found nothing compensates for failed DELs: it
// covers the plugins that failed, for each attachment, and all IPAM plugins. The
// leftovers of other plugins are unknown, so their failed DEL remains a failure.
func (all attachments) areCovered(err error) bool {
	var types []string
	for _, one := range pluginErrors(err) {
		var e *Error
		if !errors.As(one, &e) {
			return false
		}
		types = append(types, all.failedTypes(e)...)
	}
	for _, a := range all {
		d := a.described()
		if slices.ContainsFunc(types, func(typ string) bool { return !d.Covers(typ) }) {
			return false
		}
		for _, p := range a.plan.Network.Config.Plugins {
			if ipam := p.Network.IPAM.Type; ipam != "" && !d.CoversIPAM(ipam) {
				return false
			}
		}
	}
	return len(types) > 0
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

// LeftoverError means that a container, or a part of it, could not be removed.
type LeftoverError struct {
	ContainerID string
	Left        []string // a line for each thing found after the removal, for a person
	Err         error    // the cause; wraps *Errors of plugins
}

// Error names the cause, the remaining things, and the remedy.
func (e *LeftoverError) Error() string {
	s := fmt.Sprintf("container %s could not be removed", e.ContainerID)
	if why := e.why(); why != "" {
		s += ": " + why
	}
	if errors.As(e.Err, new(*RecordError)) {
		return s // which names the remedy: CleanUp leaves such a record alone too
	}
	return s + "; fix the cause and call Remove again, or call CleanUp to abandon it"
}

// why returns the cause, and the remaining things.
func (e *LeftoverError) why() string {
	var s []string
	if e.Err != nil {
		s = append(s, cmp.Or(runner.Trim(e.Err.Error()), runner.NoMessage))
	}
	if len(e.Left) > 0 {
		s = append(s, "left are "+strings.Join(e.Left, "; "))
	}
	return strings.Join(s, ": ")
}

// leftover turns an error that keeps a container on record into a
// *LeftoverError, unless it contains one.
func leftover(id record.ID, err error) error {
	if err == nil || errors.As(err, new(*LeftoverError)) {
		return err
	}
	return &LeftoverError{ContainerID: string(id), Err: err}
}

// Unwrap returns the cause.
func (e *LeftoverError) Unwrap() error { return e.Err }
