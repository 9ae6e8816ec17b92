package guard

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime/debug"
	"slices"

	"github.com/embedcni/cni/internal/parallel"
)

// repairSome repairs containers, as many together as the host takes. Those whose repair
// has failed before come last and each by itself, so that one that hangs does not keep
// the others waiting.
//
// After one group, then after two, four and so on, it looks at the others again: they
// may have shared the lost object, such as a bridge, or another guard may have repaired
// them. If something else is lost meanwhile, the others are looked at together with that.
func (r *run) repairSome(ctx context.Context, broken []string) {
	for groups := 1; len(broken) > 0 && ctx.Err() == nil; groups *= 2 {
		broken = r.repairGroups(ctx, broken, groups)
		if len(broken) == 0 || r.putOff(broken) {
			return
		}
		verdicts, err := r.Host.Look(ctx, false, broken)
		if err != nil {
			for _, id := range broken {
				r.settle(id, err, false)
			}
			return
		}
		broken = r.judge(Task{Containers: broken}, verdicts)
	}
}

// repairGroups repairs some groups of containers, and returns the rest.
func (r *run) repairGroups(ctx context.Context, broken []string, groups int) (rest []string) {
	slices.Sort(broken)
	r.mu.Lock()
	fresh, failed := r.core.Fresh(broken)
	r.mu.Unlock()
	for ; groups > 0 && len(fresh) > 0 && ctx.Err() == nil; groups-- {
		done := r.repair(ctx, fresh)
		fresh = slices.DeleteFunc(fresh, func(id string) bool { return done[id] })
	}
	if len(fresh) > 0 {
		return slices.Concat(fresh, failed)
	}
	r.repairEach(ctx, failed)
	return nil
}

// putOff has containers looked at again if something else was lost, and reports whether
// that is so.
func (r *run) putOff(ids []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ripe := r.core.Ripe(r.Now())
	if ripe {
		for _, id := range ids {
			r.core.Suspect(r.Now(), id)
		}
	}
	return ripe
}

// judge takes the verdicts in, and returns the containers to repair.
func (r *run) judge(task Task, verdicts map[string]Verdict) (broken []string) {
	r.mu.Lock()
	looked := task.Containers
	if task.Whole {
		looked = r.core.Differing()
	}
	for _, id := range looked {
		if _, differs := verdicts[id]; !differs {
			r.core.Compared(r.Now(), id, nil)
			r.core.Settled(r.Now(), id, nil)
		}
	}
	r.mu.Unlock()
	for id, v := range verdicts {
		if v.Err != nil {
			r.settle(id, v.Err, v.Busy)
			continue
		}
		if r.wantAny(id, v.Found) {
			broken = append(broken, id)
		} else {
			r.settle(id, nil, false)
		}
	}
	return broken
}

// wantAny decides about all differences of a container.
func (r *run) wantAny(id string, found []Found) (any bool) {
	r.mu.Lock()
	r.core.Compared(r.Now(), id, itemsOf(found))
	r.mu.Unlock()
	for _, f := range found {
		any = r.want(f) || any
	}
	return any
}

func itemsOf(found []Found) []Item {
	items := make([]Item, len(found))
	for i, f := range found {
		items[i] = f.Item
	}
	return items
}

// want decides about one difference, and reports it if it is left.
func (r *run) want(f Found) bool {
	r.mu.Lock()
	d, first := r.core.Want(r.Now(), f)
	by := r.core.By()
	r.mu.Unlock()
	if first && d != Repair && d != Unchosen {
		rep := Report{Kind: Left, Found: f}
		if f.Class == Rules {
			rep.By = by
		}
		r.report(rep, d)
	}
	return d == Repair
}

// settle notes the end of a look or a repair. A container that another call works on is
// no failure at first: another guard's repair, which may find it whole, takes a moment.
func (r *run) settle(id string, err error, busy bool) {
	r.mu.Lock()
	if busy {
		r.core.Busy(r.Now(), id)
	} else {
		r.core.Settled(r.Now(), id, err)
	}
	failures := r.core.Failures(id)
	r.mu.Unlock()
	if err != nil && (!busy || isTold(failures)) {
		r.report(Report{Kind: Failed, Container: id, Err: err}, "")
	}
}

// busyFor is the number of attempts in a row, with pauses that double, for which a
// container may be busy without a report.
const busyFor = 4

// isTold reports whether it is reported that a container is busy after so many attempts
// in a row: after 5, 9, 17, and so on.
func isTold(failures int) bool {
	return failures > busyFor && bits.OnesCount(uint(failures-1)) == 1
}

// repairEach repairs containers in parallel, each by itself.
func (r *run) repairEach(ctx context.Context, ids []string) {
	parallel.Each(len(ids), atOnce, func(i int) { r.repair(ctx, ids[i:i+1]) })
}

// repair repairs containers together, and returns those that were tried.
func (r *run) repair(ctx context.Context, ids []string) (done map[string]bool) {
	done = make(map[string]bool)
	for id, o := range r.ask(ctx, ids) {
		done[id] = true
		r.repaired(ctx, id, o)
	}
	return done
}

// ask has the host repair containers.
func (r *run) ask(ctx context.Context, ids []string) (all map[string]Repaired) {
	fail := func(err error) {
		all = make(map[string]Repaired)
		for _, id := range ids {
			all[id] = Repaired{Err: err}
		}
	}
	defer func() {
		if v := recover(); v != nil {
			fail(fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	if all = r.Host.Repair(ctx, ids, r.want); len(all) == 0 {
		fail(errNone)
	}
	return all
}

// errNone would be asked for ever.
var errNone = errors.New("none of the containers was tried")

// repaired takes the outcome of a repair in.
func (r *run) repaired(ctx context.Context, id string, o Repaired) {
	if ctx.Err() != nil && o.Err != nil {
		return // it will be found by the next guard
	}
	r.mu.Lock()
	by := r.core.By()
	if o.Err == nil {
		r.core.Compared(r.Now(), id, itemsOf(o.Left))
	} else {
		for _, f := range o.Made {
			r.core.Made(r.Now(), f.Item)
		}
	}
	r.mu.Unlock()
	for _, f := range o.Made {
		rep := Report{Kind: Mended, Found: f}
		if f.Class == Rules {
			rep.By = by
		}
		r.report(rep, Repair)
	}
	r.settle(id, o.Err, o.Busy)
}
