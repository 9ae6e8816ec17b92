package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
)

// RetryRemovals repeats the removals of this owner's attachments that failed in this boot
// of the machine, each after a time that grows with its failures. Recover and GC do so
// too, but they look at all containers. Package guard calls it.
//
// Containers of which the attachments could be removed are in Report.Removed, and those of
// which they could not in Report.Failed. Report.Skipped has those whose time has not come,
// or that another call has locked (ErrBusy).
func (r *Runtime) RetryRemovals(ctx context.Context) (*Report, error) {
	s := r.current.Load()
	report := &Report{}
	if err := s.refuseInside(ctx); err != nil {
		return nil, fmt.Errorf("repeat removals: %w", err)
	}
	found, err := s.owned(true, nil)
	if err != nil {
		return nil, fmt.Errorf("repeat removals: %w", err)
	}
	for _, f := range found {
		if f.Err != nil || f.Record.Warm || f.Record.Boot != s.store.Boot || !f.Record.HasFailed(s.opts.owner) {
			continue
		}
		if ctx.Err() != nil {
			return report, fmt.Errorf("repeat removals: %w", context.Cause(ctx))
		}
		o := outcome{id: string(f.Record.ContainerID), skipped: errNotYet}
		if f.Record.IsDue(s.opts.owner, time.Now()) {
			o.skipped = nil
			o.removed, o.err = s.removeFailed(ctx, f.Record.ContainerID)
			if errors.Is(o.err, ErrBusy) || errors.Is(o.err, errNotYet) {
				o.skipped, o.err = o.err, nil
			}
		}
		report.add(o)
	}
	return report, nil
}

// removeFailed removes those attachments of a container whose removal has failed before.
func (s *snapshot) removeFailed(ctx context.Context, id record.ID) (removed bool, err error) {
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	op, err := s.beginTeardown(brief, id, container.Access{})
	if err != nil {
		return false, err
	}
	return op.removeChosen(ctx, func(op *operation) (attachments, bool) {
		if op.c.Damaged {
			return nil, false // not legible enough
		}
		op.c.KeepInhabited()
		going := op.recorded(func(n *record.Attachment) bool { return n.Failures > 0 })
		return going, len(going) > 0
	})
}
