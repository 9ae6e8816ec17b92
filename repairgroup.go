package cni

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/examine"
	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/repair"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/views"
)

// repairing is the repair of one attachment.
type repairing struct {
	*attachment
	runner   *runner.Runner
	compared *examine.Part // the last comparison
	delayed  *batch.Batch  // changes of packet filters
	took     []tookForType // by the order of the first repair
}

// tookForType is the time that the repair of a plugin's part took.
type tookForType struct {
	typ  string
	took time.Duration
}

func (a *attachment) repairing() *repairing {
	return &repairing{attachment: a, runner: a.runner(), delayed: &batch.Batch{}}
}

// repairGroup is attachments of locked containers that are repaired together. It
// implements [repair.Group].
type repairGroup []*repairing

var _ repair.Group = repairGroup{}

// dumpFor is the number of attachments from which one look at all of a host is cheaper
// than asking the kernel for the parts of each.
const dumpFor = 4

// Compare implements [repair.Group]. The containers are locked, so that one look at the
// host is as good as the kernel itself: if that changes meanwhile, and something seems
// to be missing, the kernel is asked.
func (g repairGroup) Compare(ctx context.Context, members []int) []repair.Compared {
	all := make([]repair.Compared, len(members))
	if len(members) < dumpFor {
		for i, n := range members {
			all[i] = g[n].look(ctx, &views.Looks{})
		}
		return all
	}
	looks := views.Dumps()
	looks.Each(len(members), func(i int, its *views.Looks) { all[i] = g[members[i]].look(ctx, its) })
	if err := looks.Close(); err != nil {
		g[members[0]].op.logger.Error("close network namespace", "error", err)
	}
	return all
}

// look compares the attachment anew.
func (r *repairing) look(ctx context.Context, looks *views.Looks) (found repair.Compared) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			found = repair.Compared{Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	c, err := r.compareIn(ctx, looks)
	if err != nil {
		return repair.Compared{Err: err}
	}
	r.compared = c
	return repair.Compared{Differences: c.Differences}
}

func (r *repairing) compareIn(ctx context.Context, looks *views.Looks) (c *examine.Part, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	container := r.inside()
	if container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", ErrInvalidNetNS)
	}
	v, err := looks.Open(ctx, r.op.Host, container)
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, v.Close()) }()
	bound, cancel := r.runner.Bound(ctx, "CHECK")
	defer cancel()
	c = r.compare(bound, v)
	if bound.Err() != nil { // then parts count as neither compared nor missing
		return nil, context.Cause(bound)
	}
	return c, nil
}

// Fix implements [repair.Group].
func (g repairGroup) Fix(ctx context.Context, member int, d compare.Difference, together bool) error {
	r := g[member]
	var b *batch.Batch
	if together {
		b = r.delayed
	}
	begun := time.Now()
	err := r.runner.Fix(ctx, d, b)
	r.spent(d.Plugin, time.Since(begun))
	return err
}

func (r *repairing) spent(typ string, took time.Duration) {
	i := slices.IndexFunc(r.took, func(t tookForType) bool { return t.typ == typ })
	if i < 0 {
		i = len(r.took)
		r.took = append(r.took, tookForType{typ: typ})
	}
	r.took[i].took += took
}

// Apply implements [repair.Group].
func (g repairGroup) Apply(ctx context.Context, members []int) []error {
	ctx, cancel := g[members[0]].runner.Bound(ctx, "CHECK")
	defer cancel()
	var all []*batch.Batch
	for _, n := range members {
		all = append(all, g[n].delayed)
	}
	return batch.FlushTogether(ctx, all)
}

// Announce implements [repair.Group].
func (g repairGroup) Announce(ctx context.Context, member int, d compare.Difference, unanswered bool) error {
	d.Fix = func(ctx context.Context) error { return d.Announce(ctx, unanswered) }
	return g[member].runner.Fix(ctx, d, nil)
}

// together is what a repair of several containers has done.
type together struct {
	outcomes map[record.ID]*mended
	holds    []hold.Hold
}

// mended is the outcome of the repair of one container, and by attachment.
type mended struct {
	parts []mendedPart
	err   error
}

type mendedPart struct {
	*attachment
	outcome repair.Outcome
}

// groupSize is the number of containers that are repaired together at most, and groupTime
// the time for it. Calls for each of them wait as long, and all if one of them hangs.
const (
	groupSize = 64
	groupTime = 3 * time.Second
)

// choosing reports whether a difference of a container is to be repaired; see
// [repair.Options].
type choosing func(a *attachment, holds []hold.Hold, d compare.Difference) bool

// repairSome repairs the attachments of this owner to containers whose plugins ran in
// host, as many containers together as it can lock at once, up to groupSize. If it can
// lock none, it waits for lockedGrace for one. It returns the outcome for those that it
// has tried, also for those that are locked all the time, which is ErrBusy, and for at
// least one.
func (s *snapshot) repairSome(ctx context.Context, host *hostns.NetNS, ids []record.ID, want choosing) (done together) {
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
	var g repairGroup
	var options []repair.Options
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
			g = append(g, a.repairing())
			options = append(options, repair.Options{Want: func(d compare.Difference) bool { return want(a, done.holds, d) }})
		}
	}
	if len(locked) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, groupTime)
		defer cancel()
	}
	for i, result := range repair.Run(ctx, g, options) {
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

// report adds the outcome to the report, and reports it to the log and the observer.
func (r *repairing) report(ctx context.Context, out repair.Outcome, report *RepairReport) {
	log := r.op.log().With("network", r.network.config.Name, "interface", r.IfName)
	for _, d := range out.Repaired {
		log.Info("repaired", "plugin", d.Plugin, "kind", d.Kind, "object", d.Object, "wanted", d.Wanted)
		report.Repaired = append(report.Repaired, r.difference(d))
	}
	failed := make(map[string][]error)
	for _, left := range out.Left {
		if left.Failed {
			log.Warn("not repaired", "plugin", left.Plugin, "kind", left.Kind, "object", left.Object, "error", left.Reason)
			failed[left.Plugin] = append(failed[left.Plugin], left.Reason)
		}
		report.Remaining = append(report.Remaining, Remaining{r.difference(left.Difference), asPublic(left.Reason)})
	}
	for _, t := range r.took {
		r.runner.ReportRepair(ctx, t.typ, t.took, errors.Join(failed[t.typ]...))
	}
}
