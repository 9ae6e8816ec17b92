package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// collectIf is collect for KeepIf. It leaves reservations alone that are on no record:
// nobody can say about them whether they are wanted.
func (g *collection) collectIf(ctx context.Context) error {
	mine, err := owned(g.eng, g.o.DryRun, g.report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.Record.Warm { // Recover removes those that nobody can take any more
			g.collectAttachments(ctx, f).addTo(g.report)
		}
	}
	slices.Sort(g.report.Adopted)
	slices.Sort(g.report.Removed)
	if g.o.DryRun {
		return nil
	}
	err = g.eng.Store.Tidy()
	if lerr := g.list(); lerr != nil { // anything may be attached
		return Join(err, lerr)
	}
	g.garbage = &leftovers.Garbage{}
	return Join(err, g.collectByPlugins(ctx))
}

// collectAttachments removes those attachments of a container that KeepIf does not keep.
func (g *collection) collectAttachments(ctx context.Context, f record.Found) (became fate) {
	became.id = nameOf(f)
	if f.Err != nil { // which attachments it has is not known for certain
		became.skipped = AsRecordError(g.eng.Store.Records, f.Record.ContainerID, f.File, f.Err)
		return became
	}
	going, stay := g.unkept(f.Record)
	became.adopted = stay
	switch {
	case len(going) == 0:
	case g.o.DryRun:
		became.removed = true
	default:
		var err error
		became.removed, err = g.remove(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) {
			if op.c.Recorded.Damaged {
				return nil, false
			}
			going, stay := g.unkept(op.c.Recorded.Record)
			if stay {
				op.c.Recorded.KeepInUse()
			}
			return op.recorded(func(n *record.Attachment) bool { return going[n.IfName] }), len(going) > 0
		})
		became.setAside(err)
	}
	return became
}

// remove is removeChosen while no ADD or DEL is in progress.
func (g *collection) remove(ctx context.Context, id record.ID, choose choosing) (removed bool, err error) {
	return removeChosen(ctx, g.eng, id, container.Access{Waiting: container.Hurried, HasBarrier: true}, choose)
}

// choosing chooses those of a container's attachments that go. It returns false to leave the
// container alone.
type choosing func(op *operation) (going attachments, ok bool)

// removeChosen removes those of this owner's attachments of a container that choose
// returns. It reports whether it has removed anything.
func removeChosen(ctx context.Context, eng *Engine, id record.ID, how container.Access, choose choosing) (removed bool, err error) {
	op, err := eng.beginTeardown(ctx, id, how)
	if err != nil {
		return false, err
	}
	defer op.end()
	if err := op.recallOwn(); err != nil {
		return false, err
	}
	if op.c.Recorded.Record == nil {
		return false, nil // removed since it was listed
	}
	going, ok := choose(op)
	if !ok {
		return false, nil
	}
	err = op.finish(ctx, going)
	return err == nil, err
}

// unsettledOf chooses all attachments of a container or, with keep, only those that were
// being removed before.
func unsettledOf(op *operation, keep bool) (attachments, bool) {
	switch {
	case !keep:
		return op.attachments, true
	case op.c.Recorded.Damaged:
		return nil, false // not legible enough
	}
	op.c.Recorded.KeepInUse()
	return op.recorded(isGoing), true
}

// isGoing reports whether a Remove has begun to remove an attachment. One that succeeded beside
// another that failed is still on record.
func isGoing(n *record.Attachment) bool { return n.State == record.Deleting || n.Failures > 0 }

// unkept returns the interfaces of this owner's attachments on a record that a GC
// removes, and reports whether others of its attachments stay.
func (g *collection) unkept(rec *record.Record) (going map[string]bool, stay bool) {
	going = map[string]bool{}
	for n := range rec.Present() {
		if rec.OwnerOf(n) != g.eng.opts.Owner {
			continue
		}
		if g.o.KeepIf(rec, n) && n.State != record.Deleting && n.Failures == 0 {
			stay = true
		} else {
			going[n.IfName] = true
		}
	}
	return going, stay
}

// RetryRemovals tries failed removals again whose time has come.
func (eng *Engine) RetryRemovals(ctx context.Context) (*outcome.Report, error) {
	r := &outcome.Report{}
	if err := eng.RefuseInside(ctx); err != nil {
		return nil, err
	}
	found, err := owned(eng, true, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if f.Err != nil || f.Record.Warm || f.Record.Boot != eng.Store.Boot || !f.Record.HasFailed(eng.opts.Owner) {
			continue
		}
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		o := fate{id: string(f.Record.ContainerID), skipped: errNotYet}
		if f.Record.IsDue(eng.opts.Owner, time.Now()) {
			o.skipped = nil
			o.removed, o.err = removeFailed(ctx, eng, f.Record.ContainerID)
			if errors.Is(o.err, outcome.ErrBusy) || errors.Is(o.err, errNotYet) {
				o.skipped, o.err = o.err, nil
			}
		}
		o.addTo(r)
	}
	return r, nil
}

// removeFailed removes those attachments of a container whose removal was begun before.
func removeFailed(ctx context.Context, eng *Engine, id record.ID) (removed bool, err error) {
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, outcome.ErrBusy)
	defer cancel()
	return removeChosen(brief, eng, id, container.Access{}, func(op *operation) (attachments, bool) {
		if op.c.Recorded.Damaged {
			return nil, false // not legible enough
		}
		op.c.KeepInhabited()
		going := op.recorded(isGoing)
		return going, len(going) > 0
	})
}
