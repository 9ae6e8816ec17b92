package guard

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
)

// repairSome repairs containers, a few at first and then twice as many each time. In
// between it looks at the others again: they may have shared what was lost, such as a
// bridge, or another guard may have repaired them. If something else is lost meanwhile,
// the others are looked at together with that.
func (r *run) repairSome(ctx context.Context, broken []string) {
	for n := atOnce; len(broken) > 0 && ctx.Err() == nil; n *= 2 {
		some := broken[:min(n, len(broken))]
		r.repairAll(ctx, some)
		others := broken[len(some):]
		if len(others) == 0 {
			return
		}
		r.mu.Lock()
		ripe := r.core.Ripe(r.Now())
		if ripe {
			for _, id := range others {
				r.core.Suspect(r.Now(), id)
			}
		}
		r.mu.Unlock()
		if ripe {
			return
		}
		verdicts, err := r.Host.Look(ctx, false, others)
		if err != nil {
			for _, id := range others {
				r.settle(id, err)
			}
			return
		}
		broken = r.judge(Task{Containers: others}, verdicts)
	}
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
			r.settle(id, v.Err)
			continue
		}
		if r.wantAny(id, v.Found) {
			broken = append(broken, id)
		} else {
			r.settle(id, nil)
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

func (r *run) settle(id string, err error) {
	r.mu.Lock()
	r.core.Settled(r.Now(), id, err)
	r.mu.Unlock()
	if err != nil {
		r.report(Report{Kind: Failed, Container: id, Err: err}, "")
	}
}

// repairAll repairs containers in parallel.
func (r *run) repairAll(ctx context.Context, ids []string) {
	var group sync.WaitGroup
	next := make(chan string)
	for range min(atOnce, len(ids)) {
		group.Add(1)
		go func() {
			defer group.Done()
			for id := range next {
				r.repair(ctx, id)
			}
		}()
	}
	for _, id := range ids {
		next <- id
	}
	close(next)
	group.Wait()
}

func (r *run) repair(ctx context.Context, id string) {
	outcome, err := r.repairOne(ctx, id)
	if ctx.Err() != nil && err != nil {
		return // it will be found by the next guard
	}
	r.mu.Lock()
	by := r.core.By()
	if err == nil {
		r.core.Compared(r.Now(), id, itemsOf(outcome.Left))
	} else {
		for _, f := range outcome.Made {
			r.core.Made(r.Now(), f.Item)
		}
	}
	r.mu.Unlock()
	for _, f := range outcome.Made {
		rep := Report{Kind: Mended, Found: f}
		if f.Class == Rules {
			rep.By = by
		}
		r.report(rep, Repair)
	}
	r.settle(id, err)
}

func (r *run) repairOne(ctx context.Context, id string) (o Outcome, err error) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return r.Host.Repair(ctx, id, r.want)
}
