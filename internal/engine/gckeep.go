package engine

import (
	"context"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
)

// collectIf is collect for KeepIf. It leaves reservations alone that are on no record:
// nobody can say about them whether they are wanted.
func (eng *Engine) collectIf(ctx context.Context, o GCOptions, report *Report) error {
	mine, err := eng.owned(o.DryRun, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.Record.Warm { // Recover removes those that nobody can take any more
			report.add(eng.collectAttachments(ctx, f, o))
		}
	}
	slices.Sort(report.Adopted)
	slices.Sort(report.Removed)
	if o.DryRun {
		return nil
	}
	err = eng.Store.Tidy()
	left, lerr := eng.listAttached()
	if lerr != nil { // anything may be attached
		return Join(err, lerr)
	}
	return Join(err, eng.collectByPlugins(ctx, &leftovers.Garbage{}, left, o.Networks, report))
}

// collectAttachments removes those attachments of a container that KeepIf does not keep.
func (eng *Engine) collectAttachments(ctx context.Context, f record.Found, o GCOptions) (became outcome) {
	became.id = nameOf(f)
	if f.Err != nil { // which attachments it has is not known for certain
		became.skipped = AsRecordError(eng.Store.Records, f.Record.ContainerID, f.File, f.Err)
		return became
	}
	going, stay := eng.unkept(f.Record, o.KeepIf)
	became.adopted = stay
	switch {
	case len(going) == 0:
	case o.DryRun:
		became.removed = true
	default:
		var err error
		became.removed, err = eng.removeAgain(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) {
			if op.c.Damaged {
				return nil, false
			}
			going, stay := eng.unkept(op.c.Record, o.KeepIf)
			if stay {
				op.c.KeepInUse()
			}
			return op.recorded(func(n *record.Attachment) bool { return going[n.IfName] }), len(going) > 0
		})
		became.setAside(err)
	}
	return became
}

// removeAgain is removeChosen for a container of a GC.
func (eng *Engine) removeAgain(ctx context.Context, id record.ID, choose func(op *operation) (attachments, bool)) (removed bool, err error) {
	op, err := eng.beginTeardown(ctx, id, container.Access{Waiting: container.Hurried, HasBarrier: true})
	if err != nil {
		return false, err
	}
	return op.removeChosen(ctx, choose)
}

// removeChosen removes those of this owner's attachments of a container that choose
// returns, unless choose leaves the container alone, and ends the operation. It reports
// whether it has removed anything.
func (op *operation) removeChosen(ctx context.Context, choose func(op *operation) (attachments, bool)) (removed bool, err error) {
	defer op.end()
	if err := op.recallOwn(); err != nil {
		return false, err
	}
	if op.c.Record == nil {
		return false, nil // removed since it was listed
	}
	going, ok := choose(op)
	if !ok {
		return false, nil
	}
	err = op.finish(ctx, going)
	return err == nil, err
}

// unsettled chooses all attachments of a container or, with keep, only those that were
// being removed before.
func (op *operation) unsettled(keep bool) (attachments, bool) {
	switch {
	case !keep:
		return op.attachments, true
	case op.c.Damaged:
		return nil, false // not legible enough
	}
	op.c.KeepInUse()
	return op.recorded(func(n *record.Attachment) bool { return n.State == record.Deleting || n.Failures > 0 }), true
}

// unkept returns the interfaces of this owner's attachments on a record that a GC
// removes, and reports whether others of its attachments stay.
func (eng *Engine) unkept(rec *record.Record, keep func(*record.Record, *record.Attachment) bool) (going map[string]bool, stay bool) {
	going = map[string]bool{}
	for n := range rec.Present() {
		if rec.OwnerOf(n) != eng.opts.Owner {
			continue
		}
		if keep(rec, n) && n.State != record.Deleting && n.Failures == 0 {
			stay = true
		} else {
			going[n.IfName] = true
		}
	}
	return going, stay
}
