package cni

import (
	"context"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
)

// check refuses options that contradict each other.
func (o *GCOptions) check() error {
	switch {
	case o.KeepIf != nil && (len(o.Keep) > 0 || o.KeepNone):
		return fmt.Errorf("collect garbage: KeepIf is set, and so is Keep or KeepNone: %w", ErrInvalidArgument)
	case o.KeepIf == nil && len(o.Keep) == 0 && !o.KeepNone:
		return fmt.Errorf("collect garbage: Keep is empty, and KeepNone is not set: %w", ErrInvalidArgument)
	}
	return nil
}

// collectIf is collect for KeepIf. It leaves reservations alone that are on no record:
// nobody can say about them whether they are wanted.
func (s *snapshot) collectIf(ctx context.Context, o GCOptions, own []*Network, report *Report) error {
	mine, err := s.owned(o.DryRun, report)
	if err != nil {
		return err
	}
	for _, f := range mine {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !f.Record.Warm { // Recover removes those that nobody can take any more
			report.add(s.collectAttachments(ctx, f, o))
		}
	}
	slices.Sort(report.Adopted)
	slices.Sort(report.Removed)
	if o.DryRun {
		return nil
	}
	err = s.store.Tidy()
	left, lerr := s.listAttached()
	if lerr != nil { // anything may be attached
		return join(err, lerr)
	}
	return join(err, s.collectByPlugins(ctx, &leftovers.Garbage{}, left, own, report))
}

// collectAttachments removes those attachments of a container that KeepIf does not keep.
func (s *snapshot) collectAttachments(ctx context.Context, f record.Found, o GCOptions) (became outcome) {
	became.id = nameOf(f)
	if f.Err != nil { // which attachments it has is not known for certain
		became.skipped = recordError(s.store.Records, f.Record.ContainerID, f.File, f.Err)
		return became
	}
	going, stay := s.unkept(f.Record, o.KeepIf)
	became.adopted = stay
	switch {
	case len(going) == 0:
	case o.DryRun:
		became.removed = true
	default:
		var err error
		became.removed, err = s.removeAgain(ctx, f.Record.ContainerID, func(op *operation) (attachments, bool) {
			if op.c.Damaged {
				return nil, false
			}
			going, stay := s.unkept(op.c.Record, o.KeepIf)
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
func (s *snapshot) removeAgain(ctx context.Context, id record.ID, choose func(op *operation) (attachments, bool)) (removed bool, err error) {
	op, err := s.beginTeardown(ctx, id, container.Access{Waiting: container.Hurried, HasBarrier: true})
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
func (s *snapshot) unkept(rec *record.Record, keep func(Attachment) bool) (going map[string]bool, stay bool) {
	going = map[string]bool{}
	for _, a := range attachmentsOf(rec, nil) {
		if a.Owner != s.opts.owner {
			continue
		}
		if n := rec.Find(a.IfName); keep(a) && n.State != record.Deleting && n.Failures == 0 {
			stay = true
		} else {
			going[a.IfName] = true
		}
	}
	return going, stay
}
