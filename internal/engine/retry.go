package engine

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
)

// RetryRemovals tries failed removals again whose time has come.
func (eng *Engine) RetryRemovals(ctx context.Context) (*Report, error) {
	r := &Report{}
	if err := eng.RefuseInside(ctx); err != nil {
		return nil, err
	}
	found, err := eng.owned(true, nil)
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
		o := outcome{id: string(f.Record.ContainerID), skipped: errNotYet}
		if f.Record.IsDue(eng.opts.Owner, time.Now()) {
			o.skipped = nil
			o.removed, o.err = removeFailed(ctx, eng, f.Record.ContainerID)
			if errors.Is(o.err, ErrBusy) || errors.Is(o.err, errNotYet) {
				o.skipped, o.err = o.err, nil
			}
		}
		r.add(o)
	}
	return r, nil
}

// removeFailed removes those attachments of a container whose removal has failed before.
func removeFailed(ctx context.Context, eng *Engine, id record.ID) (removed bool, err error) {
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	op, err := eng.beginTeardown(brief, id, container.Access{})
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
