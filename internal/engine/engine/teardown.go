package engine

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// tearDown runs the DELs, sweeps their leftovers, and verifies that nothing
// remains. Then it deletes the record; otherwise the record stays, with the
// reason, for the next attempt.
func (op *operation) tearDown(ctx context.Context, going attachments) error {
	return (&teardown{op: op, going: going}).run(ctx)
}

// teardown is one removal of some of a container's attachments in progress.
type teardown struct {
	op     *operation
	going  attachments
	delErr error                   // of the DELs
	swept  []outcome.LeftoverError // of each attachment by itself
}

func (t *teardown) run(ctx context.Context) error {
	t.op.removal.leaving = t.going.names()
	displaced := t.displaced()
	if err := t.takeCharge(); err != nil {
		return leftover(t.op.c.Recorded.ID, err)
	}
	if t.op.c.Place.HostGone {
		t.delErr = t.withoutHost()
	} else {
		t.delErr = t.detach(ctx)
	}
	t.syncReleases()
	clean := t.sweep(ctx)
	open := t.delErr
	if clean && open != nil && !t.op.c.Place.HostGone {
		open = t.withoutUndone(ctx)
	}
	if !clean || open != nil && !t.areCovered(open) {
		return t.stay()
	}
	if err := t.op.forget(t.going); err != nil {
		// Only the record remains, for example because the disk has become
		// read-only. The next Recover removes it.
		t.op.log().Error("delete the attachment record", "error", err)
	}
	t.giveBack(ctx, displaced)
	if t.delErr == nil {
		return nil
	}
	t.op.log().Warn("DEL failed, and nothing is left", "error", t.delErr)
	t.uncache()
	return nil
}

// takeCharge records the process that works on the container from now on, and
// the attachments that it removes: if it is killed, the other attachments must
// not count as broken. A full disk must not keep a container attached.
func (t *teardown) takeCharge() error {
	if t.op.c.Recorded.Record == nil {
		return nil
	}
	self, err := t.op.eng.Store.Identity()
	if err != nil {
		return err
	}
	life := t.op.eng.Store.Life()
	for _, a := range t.going {
		if err := a.append(record.Entry{Runtime: self, Life: life, PIDNS: t.op.eng.Store.PIDNS, State: record.Deleting}); err != nil {
			t.op.log().Warn("note a removal in the record", "error", err)
		}
	}
	return nil
}

// displaced returns the addresses of which an ADD has taken over the masquerading.
func (t *teardown) displaced() (addrs []netip.Addr) {
	for _, a := range t.going {
		if a.facts.Get(netfilter.DisplacedFact) != nil {
			addrs = append(addrs, leftovers.Addresses(json.RawMessage(a.progress.partial))...)
		}
	}
	return addrs
}

// detach runs the DELs of all attachments, last first, and returns all errors.
func (t *teardown) detach(ctx context.Context) error {
	var errs []error
	for _, a := range t.going {
		t.restoreDevice(a)
	}
	for _, a := range slices.Backward(t.going) {
		errs = append(errs, t.del(ctx, a))
	}
	return Join(errs...)
}

// del runs the DELs of one network. It returns no errors of plugins whose ADD was not
// started.
func (t *teardown) del(ctx context.Context, a *attachment) (err error) {
	ctx, span := runner.NetworkSpan(ctx, "cni.detachNetwork", a.plan.Network.Config.Name, a.plan.IfName)
	defer func() { runner.EndSpan(span, err) }()
	err = a.errors("DEL", a.chain().Del(ctx, &a.plan.Attachment, a.progress.partial))
	return without(err, func(e *outcome.Error) bool { return e.Plugin != "" && a.plugins.NotRun(e.Plugin) })
}

// restoreDevice undoes a renaming by the container before plugins look for its
// interface by name. If that fails, the sweep finds the interface.
func (t *teardown) restoreDevice(a *attachment) {
	d := a.described().Kernel.Device()
	if d == nil || d.Settled {
		return
	}
	a.lost = true
	if a.inside() == nil {
		return
	}
	found, err := d.Restore(a.inside(), a.plan.IfName, d.HostName != "" && !a.inDoubt())
	if err != nil {
		a.op.log().Warn("an interface that the container has renamed does not get its name back", "interface", a.plan.IfName, "error", err)
	}
	a.lost = !found
	if a.lost && !a.inDoubt() {
		a.op.log().Warn("the interface is not in the container", "interface", a.plan.IfName)
	}
}

// withoutHost is detach if the namespace in which the plugins ran is gone, and
// with it everything that they made there. No plugin runs in the caller's
// namespace, where the same names and addresses can be others'. The sweep
// removes files, and an error names the plugins that may have files which the
// sweep does not know.
func (t *teardown) withoutHost() error {
	var errs []error
	for _, a := range t.going {
		d := a.described()
		for _, p := range d.List.Plugins {
			for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if k := conflist.Known(typ); typ == "" || k.IPAM || k.Swept && !d.Ran.IsCallers(typ) {
					continue
				}
				e := a.error("DEL", outcome.ErrHostNetNS)
				e.Plugin, e.Msg = typ, "not asked: the host network namespace that it ran in is gone; CleanUp forgets the attachment"
				errs = append(errs, e)
			}
		}
	}
	t.uncache()
	return Join(errs...)
}

// syncReleases begins to sync host-local's directories of attachments whose DELs have
// released their addresses, but those for which a built-in plugin has done so already.
func (t *teardown) syncReleases() {
	for _, a := range t.going {
		for _, dir := range leftovers.IPAMDirs(a.plan.Network.Config) {
			if !t.op.removal.releases.Has(dir) {
				t.op.removal.releases.Begin(dir, t.op.eng.Store.Records.SyncDir)
			}
		}
	}
}

// sweep removes the attachments' leftovers that the reference plugins leave when
// a DEL fails or is killed, and looks again. It is clean only after verifying
// that nothing of the attachments remains.
func (t *teardown) sweep(ctx context.Context) (clean bool) {
	t.swept = make([]outcome.LeftoverError, len(t.going))
	clean = true
	for i, a := range t.going {
		if err := netfilter.Leave(hooks{a}); err != nil {
			t.op.log().Warn("note in the record that the attachment leaves its network", "error", err)
		}
		target, done := a.target()
		left, err := leftovers.Sweep(ctx, target, t.op.log())
		done()
		t.swept[i] = outcome.LeftoverError{Left: left, Err: err}
		clean = clean && len(left) == 0 && err == nil
	}
	if clean && len(t.going) > 0 {
		t.swept[0].Err = t.going[0].makeAgain(ctx, leftovers.Inherited)
		clean = t.swept[0].Err == nil
	}
	return clean
}

// stay notes why attachments could not be detached, for each by itself, and returns
// the error for all of them. The record stays for the next Remove, Recover or GC. An
// attachment that stays only because others do gets no note: it is being detached.
func (t *teardown) stay() *outcome.LeftoverError {
	whole := &outcome.LeftoverError{ContainerID: string(t.op.c.Recorded.ID), Err: t.delErr}
	for _, o := range t.swept {
		whole.Left, whole.Err = append(whole.Left, o.Left...), Join(whole.Err, o.Err)
	}
	for i, a := range t.going {
		t.settle(a)
		t.swept[i].Err = Join(t.about(i), t.swept[i].Err)
		why := t.swept[i].Why()
		if why == "" {
			continue
		}
		if err := a.append(record.Entry{Error: why}); err != nil {
			t.op.log().Error("note a failure in the record", "error", err)
		}
	}
	return whole
}

// about returns the errors of DELs that are about attachment i, or about none of them
// in particular.
func (t *teardown) about(i int) error {
	return without(t.delErr, func(e *outcome.Error) bool {
		a := t.of(e)
		return a != nil && a != t.going[i]
	})
}

// settle notes that the interface is gone, or back on the host, while other
// leftovers of the attachment remain. A later interface like it then counts as
// another's.
func (t *teardown) settle(a *attachment) {
	target, done := a.target()
	defer done()
	if target.Footprint.Interface.Device == nil {
		return
	}
	gone, err := target.Settled()
	if gone && err == nil {
		settled := *target.Footprint.Interface.Device
		settled.Settled = true
		err = a.note(leftovers.DeviceFact, settled)
	}
	if err != nil {
		a.op.log().Warn("note that an interface is gone", "interface", a.plan.IfName, "error", err)
	}
}

// giveBack repairs the containers whose addresses this one had taken over: an address may be
// that of two containers, on networks of their own.
func (t *teardown) giveBack(ctx context.Context, addrs []netip.Addr) {
	if len(addrs) == 0 || t.op.c.Place.HostGone {
		return
	}
	var ids []record.ID
	host := t.op.c.Place.Host.String()
	err := t.op.eng.Store.Records.Each(func(f record.Found) bool {
		if f.Err == nil && f.Record.ContainerID != t.op.c.Recorded.ID && f.Record.Host == host && f.Record.Boot == t.op.eng.Store.Boot &&
			slices.ContainsFunc(f.Record.Attachments, func(n record.Attachment) bool {
				return n.State == record.Added && slices.ContainsFunc(leftovers.Addresses(n.Result), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
			}) {
			ids = append(ids, f.Record.ContainerID)
		}
		return true
	})
	for _, report := range t.op.eng.RepairAll(ctx, ids, RepairOptions{Unheld: true}) {
		err = Join(err, report.Err())
	}
	if err != nil {
		t.op.log().Warn("containers with an address of a removed one may lack masquerading: Repair makes it", "error", err)
	}
}

// uncache deletes attachments from libcni's cache that stayed there because a
// DEL failed.
func (t *teardown) uncache() {
	for _, a := range t.going {
		if err := a.cached().Forget(); err != nil {
			a.op.log().Warn("forget a removed attachment", "network", a.plan.Network.Config.Name, "error", err)
		}
	}
}
