package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// groupSize is the number of containers that are repaired together at most, and groupTime
// the time for it. Calls for each of them wait as long, and all if one of them hangs. The
// next group waits until this one has been compared anew, and its traffic with it.
const (
	groupSize = 128
	groupTime = 3 * time.Second
)

// together is a repair of several containers in progress.
type together struct {
	eng     *Engine
	options RepairOptions
	done    map[record.ID]*outcome.RepairReport
}

// RepairAll repairs the attachments of this owner to containers.
func (eng *Engine) RepairAll(ctx context.Context, ids []record.ID, o RepairOptions) map[record.ID]*outcome.RepairReport {
	t := &together{eng: eng, options: o, done: make(map[record.ID]*outcome.RepairReport)}
	for left := slices.Clone(ids); len(left) > 0; {
		if ctx.Err() != nil {
			t.fail(left, context.Cause(ctx))
			break
		}
		t.group(ctx, left)
		left = slices.DeleteFunc(left, func(id record.ID) bool { return t.done[id] != nil })
	}
	return t.done
}

// fail notes why containers could not be repaired, if there is an error.
func (t *together) fail(ids []record.ID, err error) {
	for _, id := range ids {
		if t.done[id] == nil {
			t.done[id] = &outcome.RepairReport{ContainerID: string(id)}
		}
		if err != nil {
			t.done[id].Unknown = append(t.done[id].Unknown, err)
		}
	}
}

// group repairs as many containers together as it can lock at once, up to groupSize. If it
// can lock none, it waits for lockedGrace for one. It has tried at least one.
func (t *together) group(ctx context.Context, ids []record.ID) {
	rs, err := beginRepairs(ctx, t.eng, t.options)
	if err != nil {
		t.fail(ids, err)
		return
	}
	defer rs.end()
	locked := t.lock(ctx, ids)
	var all attachments
	for _, op := range locked {
		defer op.end()
		err := recallToRepair(op)
		t.fail([]record.ID{op.c.Recorded.ID}, err)
		if err != nil {
			continue
		}
		for _, a := range op.attachments {
			if a.own() && !op.c.Recorded.Record.IsUnfinished(a.entry()) {
				all = append(all, a)
			}
		}
	}
	if len(locked) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, groupTime)
		defer cancel()
	}
	for _, r := range rs.run(ctx, all, t.done) {
		t.fail([]record.ID{r.a.op.c.Recorded.ID}, r.err)
	}
}

// lock locks containers, and notes which of them it cannot lock.
func (t *together) lock(ctx context.Context, ids []record.ID) (locked []*operation) {
	try := func(ids []record.ID) (busy []record.ID) {
		for _, id := range ids {
			switch op, err := t.eng.beginRepair(ctx, id, false); {
			case err != nil:
				t.fail([]record.ID{id}, err)
			case op == nil:
				busy = append(busy, id)
			default:
				locked = append(locked, op)
			}
			if len(locked) == groupSize {
				break
			}
		}
		return busy
	}
	busy := try(ids)
	if len(locked) > 0 || len(busy) == 0 {
		return locked
	}
	// Nobody waits for a container while others are kept waiting.
	brief, stop := context.WithTimeoutCause(ctx, lockedGrace, outcome.ErrBusy)
	defer stop()
	if op, err := t.eng.beginRepair(brief, busy[0], true); err != nil {
		t.fail(busy[:1], err)
	} else {
		locked = append(locked, op)
	}
	for _, id := range try(busy[1:]) {
		t.fail([]record.ID{id}, fmt.Errorf("container %q: %w", id, outcome.ErrBusy))
	}
	return locked
}

// beginRepairs learns what is held, as far as a repair with these options leaves it. Until
// the repairs end, nobody can hold anything else.
func beginRepairs(ctx context.Context, eng *Engine, o RepairOptions) (r *repairs, err error) {
	r = &repairs{o: o, end: func() {}}
	if !o.Unheld {
		return r, nil
	}
	kept, err := eng.Store.Locks.LockAll(ctx, []lock.Key{{Name: record.HoldsLock, Shared: true}})
	if err != nil {
		return nil, err
	}
	r.end = func() {
		if err := kept.Release(); err != nil {
			eng.opts.Logger.Error("release the lock of the holds", "error", err)
		}
	}
	if r.holds, err = record.HoldsIn(eng.opts.StateDir).List(); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}
