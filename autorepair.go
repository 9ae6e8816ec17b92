package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/views"
)

// together is what a repair of several containers has done.
type together struct {
	outcomes map[record.ID]*mended
	holds    []hold.Hold
	rules    *netfilter.Kept
}

// mended is the outcome of the repair of one container, and by attachment.
type mended struct {
	parts []mendedPart
	err   error
}

type mendedPart struct {
	*attachment
	outcome health.Outcome
}

// groupSize is the number of containers that are repaired together at most, and groupTime
// the time for it. Calls for each of them wait as long, and all if one of them hangs.
const (
	groupSize = 64
	groupTime = 3 * time.Second
)

// choosing reports whether a difference of a container is to be repaired; see
// [health.RepairOptions].
type choosing func(a *attachment, holds []hold.Hold, d compare.Difference) bool

// repairSome repairs the attachments of this owner to containers whose plugins ran in
// host, as many containers together as it can lock at once, up to groupSize. If it can
// lock none, it waits for lockedGrace for one. It returns the outcome for those that it
// has tried, also for those that are locked all the time, which is ErrBusy, and for at
// least one. rules are those that an earlier call has seen; they may be nil.
func (s *snapshot) repairSome(ctx context.Context, host *hostns.NetNS, ids []record.ID, want choosing, rules *netfilter.Kept) (done together) {
	if rules == nil {
		rules = &netfilter.Kept{}
	}
	done.rules = rules
	done.outcomes = make(map[record.ID]*mended)
	failed := func(err error) together {
		for _, id := range ids {
			done.outcomes[id] = &mended{err: err}
		}
		return done
	}
	kept, err := s.lockHolds(ctx, true)
	if err != nil {
		return failed(err)
	}
	defer func() {
		if err := kept.Release(); err != nil {
			s.logger.Error("release the lock of the holds", "error", err)
		}
	}()
	if done.holds, err = s.holds().List(); err != nil {
		return failed(err)
	}
	var locked []*operation
	defer func() {
		for _, op := range locked {
			op.end()
		}
	}()
	locked = s.lockSome(ctx, ids, done.outcomes)
	s.repairLocked(ctx, host, locked, want, done)
	return done
}

// lockSome locks containers for a repair, see repairSome. It notes the outcome for those
// that it cannot lock.
func (s *snapshot) lockSome(ctx context.Context, ids []record.ID, failed map[record.ID]*mended) (locked []*operation) {
	var busy []record.ID
	for _, id := range ids {
		if len(locked) == groupSize {
			return locked
		}
		switch op, err := s.tryRepair(id); {
		case err != nil:
			failed[id] = &mended{err: err}
		case op == nil:
			busy = append(busy, id)
		default:
			locked = append(locked, op)
		}
	}
	if len(locked) > 0 || len(busy) == 0 {
		return locked
	}
	// Nobody waits for a container while others are kept waiting.
	brief, stop := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer stop()
	op, err := s.beginRepair(brief, busy[0])
	if err == nil {
		locked = append(locked, op)
	} else {
		failed[busy[0]] = &mended{err: err}
	}
	for _, id := range busy[1:] {
		if len(locked) == groupSize {
			break
		}
		switch op, err := s.tryRepair(id); {
		case err != nil:
			failed[id] = &mended{err: err}
		case op == nil:
			failed[id] = &mended{err: fmt.Errorf("container %q: %w", id, ErrBusy)}
		default:
			locked = append(locked, op)
		}
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
func (s *snapshot) repairLocked(ctx context.Context, host *hostns.NetNS, locked []*operation, want choosing, done together) {
	var g []*repairing
	var options []health.RepairOptions
	for _, op := range locked {
		m := &mended{}
		done.outcomes[op.ID] = m
		switch err := op.recallToRepair(); {
		case errors.Is(err, ErrNotAttached), errors.Is(err, ErrNotRepairable):
			s.logger.Debug("a container is not repaired", "container", op.ID, "reason", err)
			continue // removed since, or the matter of Recover
		case err != nil:
			m.err = err
			continue
		case op.Host.ID() != host.ID():
			continue
		}
		for _, a := range op.attachments {
			if !a.own() || op.Record.IsUnfinished(a.entry()) {
				continue
			}
			r := a.repairing()
			r.parts.Runner.Given.Filters.Kept = done.rules
			g = append(g, r)
			options = append(options, health.RepairOptions{Want: func(d compare.Difference) bool { return want(a, done.holds, d) }})
		}
	}
	if len(locked) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, groupTime)
		defer cancel()
	}
	for i, result := range runRepairs(ctx, g, options) {
		r, m := g[i], done.outcomes[g[i].op.ID]
		r.report(ctx, result.Outcome, &RepairReport{})
		m.parts = append(m.parts, mendedPart{r.attachment, result.Outcome})
		err := result.Err
		for _, left := range result.Left {
			if left.Failed {
				err = join(err, left.Reason)
			}
		}
		m.err = join(m.err, r.errors(repairOp, err))
	}
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
func (op *operation) makeUnheld(ctx context.Context, all attachments, report *RepairReport) (err error) {
	kept, err := op.lockHolds(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = join(err, kept.Release()) }()
	holds, err := op.snapshot.holds().List()
	if err != nil {
		return err
	}
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
