package cni

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/views"
)

// RepairAll repairs this owner's attachments of several containers, as Repair does, but
// many at a time: it reads the host once for all that it can lock, and changes the packet
// filter once. It asks no plugin for CHECK. It is for a loss that many containers share,
// such as flushed rules; package guard calls it.
//
// The reports are in the order of the IDs. That of a container that could not be repaired
// has the reason in Unknown: ErrBusy, if another call had it locked, and those that Repair
// returns. The error is the reason why nothing could be done at all.
func (r *Runtime) RepairAll(ctx context.Context, ids []string, o RepairOptions) (reports []*RepairReport, err error) {
	s := r.current.Load()
	if err := s.refuseInside(ctx); err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	all := make([]record.ID, len(ids))
	for i, id := range ids {
		all[i] = record.ID(id)
	}
	done := s.repairAll(ctx, host, all, o)
	for _, id := range all {
		reports = append(reports, done[id])
	}
	if err := host.Close(); err != nil {
		return reports, fmt.Errorf("repair: %w", err)
	}
	return reports, nil
}

// groupSize is the number of containers that are repaired together at most, and groupTime
// the time for it. Calls for each of them wait as long, and all if one of them hangs.
const (
	groupSize = 64
	groupTime = 3 * time.Second
)

// together is a repair of several containers in progress.
type together struct {
	*snapshot
	host    *hostns.NetNS // in which their plugins ran
	options RepairOptions
	done    map[record.ID]*RepairReport
	// elsewhere are the containers whose plugins ran in another namespace. Each is repaired
	// by itself.
	elsewhere []record.ID
}

// repairAll repairs the attachments of this owner to containers.
func (s *snapshot) repairAll(ctx context.Context, host *hostns.NetNS, ids []record.ID, o RepairOptions) map[record.ID]*RepairReport {
	t := &together{snapshot: s, host: host, options: o, done: make(map[record.ID]*RepairReport)}
	for left := slices.Clone(ids); len(left) > 0; {
		if ctx.Err() != nil {
			t.fail(left, context.Cause(ctx))
			break
		}
		t.group(ctx, left)
		left = slices.DeleteFunc(left, func(id record.ID) bool { return t.done[id] != nil })
	}
	for _, id := range t.elsewhere {
		report, err := s.repair(ctx, id, o, false)
		if report != nil {
			t.done[id] = report
		}
		t.fail([]record.ID{id}, err)
	}
	return t.done
}

// fail notes why containers could not be repaired, if there is an error.
func (t *together) fail(ids []record.ID, err error) {
	for _, id := range ids {
		if t.done[id] == nil {
			t.done[id] = &RepairReport{ContainerID: string(id)}
		}
		if err != nil {
			t.done[id].Unknown = append(t.done[id].Unknown, err)
		}
	}
}

// group repairs as many containers together as it can lock at once, up to groupSize. If it
// can lock none, it waits for lockedGrace for one. It has tried at least one.
func (t *together) group(ctx context.Context, ids []record.ID) {
	holds, release, err := t.heldNow(ctx)
	if err != nil {
		t.fail(ids, err)
		return
	}
	defer release()
	var locked []*operation
	defer func() {
		for _, op := range locked {
			op.end()
		}
	}()
	locked = t.lock(ctx, ids)
	t.repairLocked(ctx, locked, holds)
}

// lock locks containers, and notes which of them it cannot lock.
func (t *together) lock(ctx context.Context, ids []record.ID) (locked []*operation) {
	var busy []record.ID
	try := func(id record.ID) {
		switch op, err := t.tryRepair(id); {
		case err != nil:
			t.fail([]record.ID{id}, err)
		case op == nil:
			busy = append(busy, id)
		default:
			locked = append(locked, op)
		}
	}
	for _, id := range ids {
		if try(id); len(locked) == groupSize {
			return locked
		}
	}
	if len(locked) > 0 || len(busy) == 0 {
		return locked
	}
	// Nobody waits for a container while others are kept waiting.
	first, others := busy[0], busy[1:]
	brief, stop := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer stop()
	if op, err := t.beginRepair(brief, first); err != nil {
		t.fail([]record.ID{first}, err)
	} else {
		locked = append(locked, op)
	}
	busy = nil
	for _, id := range others {
		if try(id); len(locked) == groupSize {
			break
		}
	}
	for _, id := range busy {
		t.fail([]record.ID{id}, fmt.Errorf("container %q: %w", id, ErrBusy))
	}
	return locked
}

// tryRepair is beginRepair, but returns nil if it would have to wait.
func (s *snapshot) tryRepair(id record.ID) (*operation, error) {
	op, err := s.newRepair(id)
	if err != nil {
		return nil, err
	}
	if ok, err := op.TryLock(); !ok || err != nil {
		return nil, join(err, op.Host.Close())
	}
	return op, nil
}

// repairLocked repairs locked containers.
func (t *together) repairLocked(ctx context.Context, locked []*operation, holds []hold.Hold) {
	var g []*repairing
	var options []health.RepairOptions
	for _, op := range locked {
		err := op.recallToRepair()
		t.fail([]record.ID{op.ID}, err)
		if err != nil {
			continue
		}
		if op.Host.ID() != t.host.ID() {
			t.elsewhere = append(t.elsewhere, op.ID)
			continue
		}
		for _, a := range op.attachments {
			if !a.own() || op.Record.IsUnfinished(a.entry()) {
				continue
			}
			r := a.repairing()
			g = append(g, r)
			options = append(options, r.options(t.options, holds))
		}
	}
	if len(locked) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, groupTime)
		defer cancel()
	}
	for i, result := range runRepairs(ctx, g, options) {
		report := t.done[g[i].op.ID]
		g[i].report(ctx, result.Outcome, report)
		if result.Err != nil {
			report.Unknown = append(report.Unknown, g[i].errors(repairOp, result.Err))
		}
	}
}

// options returns the options for one attachment.
func (r *repairing) options(o RepairOptions, holds []hold.Hold) health.RepairOptions {
	r.held = o.Unheld && isHeld(holds, r.op.Record, r.network.config.Name)
	its := health.RepairOptions{Inside: o.Inside}
	if r.held || o.Want != nil {
		its.Want = func(d compare.Difference) bool { return !r.held && o.Want(string(r.op.ID), r.difference(d)) }
	}
	return its
}

// heldNow returns what is held. Until release is called, nobody can hold anything else.
func (s *snapshot) heldNow(ctx context.Context) (holds []hold.Hold, release func(), err error) {
	kept, err := s.lockHolds(ctx)
	if err != nil {
		return nil, nil, err
	}
	release = func() {
		if err := kept.Release(); err != nil {
			s.logger.Error("release the lock of the holds", "error", err)
		}
	}
	if holds, err = s.holds().List(); err != nil {
		release()
		return nil, nil, err
	}
	return holds, release, nil
}

// repairBroken adds missing parts of attachments on the host, unless they are
// held. It returns that, and the attachments as they are then.
func (op *operation) repairBroken(ctx context.Context, all attachments) (repaired []Difference, parts []*health.Part, err error) {
	report := &RepairReport{}
	err = op.makeUnheld(ctx, all, report)
	parts, cerr := op.compareAll(ctx, &views.Looks{}, all)
	return report.Repaired, parts, join(err, cerr)
}

// makeUnheld adds missing parts of those attachments that are not held. If that
// cannot be read, all may be.
func (op *operation) makeUnheld(ctx context.Context, all attachments, report *RepairReport) error {
	holds, release, err := op.heldNow(ctx)
	if err != nil {
		return err
	}
	defer release()
	var g []*repairing
	for _, a := range all {
		if a.unfinished() == nil && !isHeld(holds, op.Record, a.network.config.Name) {
			g = append(g, a.repairing())
		}
	}
	var errs []error
	for i, result := range runRepairs(ctx, g, make([]health.RepairOptions, len(g))) {
		g[i].report(ctx, result.Outcome, report)
		errs = append(errs, g[i].errors(repairOp, result.Err))
	}
	return join(errs...)
}
