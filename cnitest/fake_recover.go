package cnitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/embedcni/cni"
)

// errNotYet: a removal failed not long ago.
var errNotYet = errors.New("not tried again yet")

// retryIn returns the time until a failed removal is repeated.
func (a *fakeAttachment) retryIn() time.Duration {
	if a.failures == 0 {
		return 0
	}
	return min(time.Second<<min(a.failures-1, 12), time.Hour) - time.Since(a.lastTry)
}

// finish removes attachments, unless a removal of one has failed just now.
func (f *Fake) finish(ctx context.Context, id string, going []*fakeAttachment) error {
	f.h.mu.Lock()
	for _, a := range going {
		if wait := a.retryIn(); wait > 0 {
			f.h.mu.Unlock()
			return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), a.failures, a.lastError)
		}
	}
	f.h.mu.Unlock()
	return f.tearDown(context.WithoutCancel(ctx), id, going)
}

// isUnfinished reports whether a removal of the attachment has begun, or the Setup that
// it belongs to has not ended.
func isUnfinished(all []*fakeAttachment, a *fakeAttachment) bool {
	return a.progress == fakeDeleting || a.failures > 0 ||
		slices.ContainsFunc(all, func(o *fakeAttachment) bool { return o.progress == fakePlanned && o.call == a.call })
}

// brokenAction returns what the options have Recover do. They are functions on an
// unexported type, so that only reflection can read what they set.
func brokenAction(opts []cni.RecoverOption) cni.BrokenAction {
	set := reflect.New(reflect.TypeFor[cni.RecoverOption]().In(0).Elem())
	for _, o := range opts {
		reflect.ValueOf(o).Call([]reflect.Value{set})
	}
	return cni.BrokenAction(set.Elem().FieldByName("broken").Int())
}

// Recover is Runtime.Recover of package cni.
func (f *Fake) Recover(ctx context.Context, opts ...cni.RecoverOption) (_ *cni.Report, err error) {
	defer f.record(FakeCall{Method: "Recover"}, &err)
	report := &cni.Report{}
	action := brokenAction(opts)
	f.noteOthers(report)
	for _, id := range f.h.ids() {
		if ctx.Err() != nil {
			return report, fmt.Errorf("recover: %w", context.Cause(ctx))
		}
		f.recover(ctx, id, action, report)
	}
	return report, nil
}

// noteOthers lists the other owners, if nobody has named this one.
func (f *Fake) noteOthers(report *cni.Report) {
	me := f.me()
	if me != filepath.Base(os.Args[0]) {
		return
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	for _, c := range f.h.containers {
		for _, a := range c.attachments {
			if a.owner != me && !slices.Contains(report.OtherOwners, a.owner) {
				report.OtherOwners = append(report.OtherOwners, a.owner)
			}
		}
	}
	slices.Sort(report.OtherOwners)
}

// note adds a reason to a map of a report.
func note[V any](m *map[string]V, id string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[id] = value
}

// lockMine locks a container for Recover or GC, unless this owner has not attached it, or
// another call has it locked, which becomes a line of the report. Then unlock is nil. A
// namespace without attachments, of a pool whose program has ended, is removed.
func (f *Fake) lockMine(ctx context.Context, id string, report *cni.Report) (unlock func()) {
	if f.h.forgetEmpty(id, f.me()) {
		report.Removed = append(report.Removed, id)
	}
	if mine, _ := f.h.mine(id, f.me()); len(mine) == 0 {
		return nil
	}
	unlock, err := f.h.lockBriefly(ctx, id)
	if err != nil {
		note(&report.Skipped, id, err)
		return nil
	}
	return unlock
}

func (f *Fake) recover(ctx context.Context, id string, action cni.BrokenAction, report *cni.Report) {
	unlock := f.lockMine(ctx, id, report)
	if unlock == nil {
		return
	}
	defer unlock()
	mine, dead := f.h.mine(id, f.me())
	going, staying := mine, []*fakeAttachment(nil)
	if !dead {
		going = nil
		for _, a := range mine {
			if f.h.locking(func() bool { return a.warm || isUnfinished(mine, a) }) {
				going = append(going, a)
			} else {
				staying = append(staying, a)
			}
		}
	}
	if len(staying) > 0 {
		repaired, lacking, doubt := f.judge(ctx, id, staying, action)
		if lacking && action == cni.RemoveBroken {
			going = mine
		} else {
			report.Adopted = append(report.Adopted, id)
			if len(repaired) > 0 {
				note(&report.Repaired, id, repaired)
			}
			if doubt != nil {
				note(&report.Kept, id, doubt)
			}
		}
	}
	if len(going) == 0 {
		return
	}
	if err := f.finish(ctx, id, going); err != nil {
		note(&report.Failed, id, asLeftover(id, err))
	} else if len(going) == len(mine) {
		report.Removed = append(report.Removed, id)
	}
}

// asLeftover makes an error that keeps a container on record a *cni.LeftoverError.
func asLeftover(id string, err error) error {
	if errors.As(err, new(*cni.LeftoverError)) {
		return err
	}
	return &cni.LeftoverError{ContainerID: id, Err: err}
}

// locking runs fn while the host is locked.
func (h *fakeHost) locking(fn func() bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fn()
}

// judge returns the verdict on attachments that stay, after repairing those without a hold.
func (f *Fake) judge(ctx context.Context, id string, staying []*fakeAttachment, action cni.BrokenAction) (repaired []cni.Difference, lacking bool, doubt error) {
	var errs []error
	for _, a := range staying {
		f.h.mu.Lock()
		if action == cni.RepairBroken && !f.h.isHeld(id, a.Network) {
			repaired = append(repaired, a.repair(false)...)
		}
		for _, d := range a.broken {
			lacking = true
			errs = append(errs, d.Err)
		}
		f.h.mu.Unlock()
		errs = append(errs, f.h.fault(ctx, "CHECK", id, a))
	}
	return repaired, lacking, join(errs)
}

// repair adds the parts that can be repaired, and returns them.
func (a *fakeAttachment) repair(inside bool) (repaired []cni.Difference) {
	var left []cni.Difference
	for _, d := range a.broken {
		if d.Repairable && (!d.Inside || inside) {
			repaired = append(repaired, d)
		} else {
			left = append(left, d)
		}
	}
	a.broken = left
	return repaired
}

// GC is Runtime.GC of package cni.
func (f *Fake) GC(ctx context.Context, o cni.GCOptions) (_ *cni.Report, err error) {
	defer f.record(FakeCall{Method: "GC"}, &err)
	switch {
	case o.KeepIf != nil && (len(o.Keep) > 0 || o.KeepNone):
		return nil, fmt.Errorf("collect garbage: KeepIf is set, and so is Keep or KeepNone: %w", cni.ErrInvalidArgument)
	case o.KeepIf == nil && len(o.Keep) == 0 && !o.KeepNone:
		return nil, fmt.Errorf("collect garbage: Keep is empty, and KeepNone is not set: %w", cni.ErrInvalidArgument)
	}
	if _, err := f.planOf(o.Configs); err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	report := &cni.Report{}
	f.noteOthers(report)
	if !o.DryRun {
		for _, id := range f.h.ids() {
			if mine, _ := f.h.mine(id, f.me()); slices.Contains(o.Keep, id) && len(mine) > 0 {
				report.Adopted = append(report.Adopted, id)
			}
		}
	}
	for _, id := range f.h.ids() {
		if ctx.Err() != nil {
			return report, fmt.Errorf("collect garbage: %w", context.Cause(ctx))
		}
		if o.KeepIf != nil {
			f.collectIf(ctx, id, o, report)
		} else {
			f.collect(ctx, id, o, report)
		}
	}
	return report, nil
}

// unkept returns this owner's attachments of a container that KeepIf does not keep, or
// whose removal has begun, and reports whether others of them stay.
func (f *Fake) unkept(id string, keep func(cni.Attachment) bool) (going []*fakeAttachment, stay bool) {
	all, _ := f.h.mine(id, f.me())
	for _, a := range all {
		f.h.mu.Lock()
		kept, err := a.public(f.h.containers[id])
		settled := a.progress != fakeDeleting && a.failures == 0
		f.h.mu.Unlock()
		if err == nil && keep(kept) && settled {
			stay = true
		} else {
			going = append(going, a)
		}
	}
	return going, stay
}

// collectIf is collect for KeepIf.
func (f *Fake) collectIf(ctx context.Context, id string, o cni.GCOptions, report *cni.Report) {
	going, stay := f.unkept(id, o.KeepIf)
	if len(going) > 0 && going[0].warm {
		return // Recover removes it
	}
	if stay {
		report.Adopted = append(report.Adopted, id)
	}
	if len(going) == 0 {
		return
	}
	var err error
	if !o.DryRun {
		unlock := f.lockMine(ctx, id, report)
		if unlock == nil {
			return
		}
		defer unlock()
		if going, stay = f.unkept(id, o.KeepIf); len(going) > 0 {
			err = f.finish(ctx, id, going)
		}
	}
	if err != nil {
		note(&report.Failed, id, asLeftover(id, err))
	} else if !stay {
		report.Removed = append(report.Removed, id)
	}
}

func (f *Fake) collect(ctx context.Context, id string, o cni.GCOptions, report *cni.Report) {
	keep := slices.Contains(o.Keep, id)
	if o.DryRun {
		if mine, _ := f.h.mine(id, f.me()); len(mine) > 0 && !keep {
			report.Removed = append(report.Removed, id)
		}
		return
	}
	unlock := f.lockMine(ctx, id, report)
	if unlock == nil {
		return
	}
	defer unlock()
	going, _ := f.h.mine(id, f.me())
	if keep {
		f.h.mu.Lock()
		going = slices.DeleteFunc(going, func(a *fakeAttachment) bool { return a.progress != fakeDeleting && a.failures == 0 })
		f.h.mu.Unlock()
	}
	if len(going) == 0 {
		return
	}
	if err := f.finish(ctx, id, going); err != nil {
		note(&report.Failed, id, asLeftover(id, err))
	} else if !keep {
		report.Removed = append(report.Removed, id)
	}
}

// CleanUp is Runtime.CleanUp of package cni.
func (f *Fake) CleanUp(ctx context.Context, t cni.CleanUpTarget) (found []string, err error) {
	defer f.record(FakeCall{Method: "CleanUp", ContainerID: t.ContainerID}, &err)
	if err = validID(t.ContainerID); err == nil && (t.Network == "" || t.IfName == "") {
		err = fmt.Errorf("no network or no interface: %w", cni.ErrInvalidArgument)
	}
	var unlock func()
	if err == nil {
		unlock, err = f.h.lock(ctx, t.ContainerID)
	}
	if err != nil {
		return nil, fmt.Errorf("clean up %s of container %q on network %q: %w", t.IfName, t.ContainerID, t.Network, err)
	}
	defer unlock()
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	if !t.DryRun {
		f.h.recall(t.ContainerID, func(a *fakeAttachment) bool { return a.Network == t.Network && a.IfName == t.IfName })
	}
	a := cmp.Or(f.h.containers[t.ContainerID].on(t.Network, t.IfName), f.h.released[t.ContainerID].on(t.Network, t.IfName))
	if a == nil {
		return nil, nil
	}
	if a.link {
		found = append(found, "interface "+a.IfName)
	}
	for _, r := range a.held {
		found = append(found, "address "+r.prefix.Addr().String())
	}
	found = append(found, "attachment record")
	if !t.DryRun {
		f.h.ipam.release(a.Network, a.held)
		f.h.forget(t.ContainerID, []*fakeAttachment{a})
	}
	return found, nil
}
