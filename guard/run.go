package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/parallel"
)

// Run repairs what others break, until ctx ends. It repairs by the rules of
// cni.Runtime.Repair: it adds missing parts that are on record, removes and overwrites
// nothing, and changes nothing in a container.
//
// It learns of changes from the kernel, in the namespace that WithHostNetNS names or else
// the caller's, and guards this owner's containers. Several guards, in one process or in
// many, do not undo each other's work.
//
// Run returns nil when ctx ends, after everything that it started has ended, and
// everything that it opened is closed. It returns an error if it cannot begin, or can no
// longer learn of changes. A container that a guard was repairing when its process was
// killed is repaired by the next one, which begins with a look at all containers.
func Run(ctx context.Context, rt *cni.Runtime, o Options) error {
	g := &guard{
		rt: rt, options: o, config: rt.GetConfig(), wake: make(chan struct{}, 1),
		items: make(items), failed: make(map[string]failed),
	}
	if err := g.run(ctx); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	return nil
}

// guard is a guard that runs.
type guard struct {
	rt      *cni.Runtime
	options Options
	config  *cni.ConfigResult
	host    *host
	wake    chan struct{} // there may be something to do
	telling sync.Mutex

	mu     sync.Mutex // guards what follows
	pace   pace
	items  items
	failed map[string]failed // containers that could not be compared or repaired
	by     string            // the process that was the last to change rules
}

// failed is what became of a container lately.
type failed struct {
	times int    // in a row
	told  string // the last failure
}

// source watches for something until ctx ends. It returns an error if it ends before that.
type source func(ctx context.Context) error

func (g *guard) run(ctx context.Context) (err error) {
	if g.options.Classes == 0 {
		g.options.Classes = all
	}
	if g.options.Classes&^all != 0 {
		return fmt.Errorf("%w: class %#x", cni.ErrInvalidArgument, uint8(g.options.Classes))
	}
	if g.options.GCInterval > 0 && g.options.GC == nil {
		return fmt.Errorf("%w: GCInterval is set, and GC is not", cni.ErrInvalidArgument)
	}
	if g.host, err = openHost(g.config.HostNetNS, g.options.Classes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.host.close()) }()
	return g.until(ctx, append(g.host.sources(g), g.jobs()...))
}

// until watches and repairs until ctx ends, or until a source fails.
func (g *guard) until(ctx context.Context, sources []source) error {
	inner, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	for _, watch := range sources {
		group.Go(func() {
			if err := parallel.Try(func() error { return watch(inner) }); err != nil && inner.Err() == nil {
				cancel(err)
			}
		})
	}
	g.tell(Event{Kind: Begun})
	err := g.loop(inner)
	cancel(err)
	group.Wait()
	if err == nil && ctx.Err() == nil {
		err = context.Cause(inner)
	}
	return err
}

// hear takes in that something may have been lost, so that all containers are to be looked
// at.
func (g *guard) hear() {
	g.mu.Lock()
	news := g.pace.first.IsZero()
	g.pace.hear(time.Now())
	g.mu.Unlock()
	if !news {
		return
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// loop looks and repairs whenever something is due. It returns an error if that can never
// succeed.
func (g *guard) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		g.mu.Lock()
		at := g.pace.due()
		now := !at.IsZero() && !time.Now().Before(at)
		if now {
			g.pace.look()
		}
		g.mu.Unlock()
		if now {
			if err := g.look(ctx); errors.Is(err, cni.ErrInsidePlugin) {
				return err
			}
			continue
		}
		var due <-chan time.Time
		if !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-g.wake:
		case <-due:
		}
	}
	return nil
}

// look looks at all containers, and repairs those that want it.
func (g *guard) look(ctx context.Context) error {
	began := time.Now()
	report, err := g.rt.Health(ctx, cni.HealthOptions{Once: true, WithoutCheck: true})
	g.mu.Lock()
	g.pace.looked(time.Now(), time.Since(began), err)
	g.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			g.tell(Event{Kind: Failed, Err: err})
		}
		return err
	}
	g.tell(Event{Kind: Looked})
	g.repair(ctx, g.judge(report))
	return nil
}

// judge takes the verdicts in, and returns the containers to repair.
func (g *guard) judge(report *cni.HealthReport) (broken []string) {
	g.mu.Lock()
	for _, id := range slices.AppendSeq(slices.Collect(maps.Keys(g.items)), maps.Keys(g.failed)) {
		if h, ok := report.Of(id); !ok || h.State != cni.StateBroken && h.State != cni.StateUnknown {
			g.settle(id, nil)
		}
	}
	g.mu.Unlock()
	for _, h := range report.Containers {
		switch h.State {
		case cni.StateBroken:
			if g.wantsAny(h) {
				broken = append(broken, h.ContainerID)
			}
		case cni.StateUnknown:
			g.unknown(h)
		}
	}
	return broken
}

// settle notes what a comparison has found that is left, and nothing to be done about it.
func (g *guard) settle(id string, left []cni.Difference) {
	g.items.compared(time.Now(), id, left)
	delete(g.failed, id)
}

// unknown takes in that a container could not be compared. What nothing can be done about
// here is a matter of Recover.
func (g *guard) unknown(h cni.Health) {
	final := slices.ContainsFunc([]error{cni.ErrHostNetNS, cni.ErrInvalidNetNS, cni.ErrNotRepairable}, func(reason error) bool { return errors.Is(h.Reason, reason) })
	if !final && !errors.As(h.Reason, new(*cni.RecordError)) {
		g.fail(h.ContainerID, h.Reason)
	}
}

// wantsAny decides about all differences of a container, and reports whether one of them
// is to be repaired.
func (g *guard) wantsAny(h cni.Health) (any bool) {
	found := outside(h.Differences)
	g.mu.Lock()
	g.items.compared(time.Now(), h.ContainerID, found)
	g.mu.Unlock()
	for _, d := range found {
		any = g.wants(h.ContainerID, d) || any
	}
	if !any {
		g.mu.Lock()
		delete(g.failed, h.ContainerID)
		g.mu.Unlock()
	}
	return any
}

func outside(found []cni.Difference) []cni.Difference {
	return slices.DeleteFunc(slices.Clone(found), func(d cni.Difference) bool { return d.Inside })
}

// wants decides about one difference, and reports it if it is left.
func (g *guard) wants(id string, d cni.Difference) bool {
	g.mu.Lock()
	what, news := g.items.decide(time.Now(), id, d, g.options.Classes)
	g.mu.Unlock()
	if news {
		g.tell(g.about(what, id, d))
	}
	return what == Repaired
}

// about returns an event about a difference.
func (g *guard) about(what Kind, id string, d cni.Difference) Event {
	e := Event{Kind: what, ContainerID: id, Difference: &d}
	if classOf(d) == Rules {
		g.mu.Lock()
		e.By = g.by
		g.mu.Unlock()
	}
	return e
}

// repairTime bounds the time of a repair, and atOnce is the number of containers that are
// repaired at the same time, each by itself.
const (
	repairTime = 30 * time.Second
	atOnce     = 16
)

// repair repairs containers, together as far as possible. Those whose repair has failed
// before come last and each by itself, so that one that hangs does not keep the others
// waiting.
func (g *guard) repair(ctx context.Context, broken []string) {
	var fresh, again []string
	g.mu.Lock()
	for _, id := range broken {
		if g.failed[id].times == 0 {
			fresh = append(fresh, id)
		} else {
			again = append(again, id)
		}
	}
	g.mu.Unlock()
	g.repairSome(ctx, fresh)
	parallel.Each(len(again), atOnce, func(i int) {
		err := g.host.do(func() error {
			g.repairSome(ctx, again[i:i+1])
			return nil
		})
		if err != nil {
			g.fail(again[i], err)
		}
	})
}

func (g *guard) repairSome(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	bound, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	var reports []*cni.RepairReport
	err := parallel.Try(func() (err error) {
		reports, err = g.rt.RepairAll(bound, ids, cni.RepairOptions{Unheld: true, Want: g.wants})
		return err
	})
	if ctx.Err() != nil {
		return // it will be found by the next guard
	}
	for _, r := range reports {
		g.repaired(r)
	}
	if err != nil && len(reports) == 0 {
		for _, id := range ids {
			g.fail(id, err)
		}
	}
}

// repaired takes the outcome of a repair in.
func (g *guard) repaired(r *cni.RepairReport) {
	id, err := r.ContainerID, failure(r)
	var left []cni.Difference
	for _, one := range r.Remaining {
		left = append(left, one.Difference)
	}
	g.mu.Lock()
	if err == nil {
		g.settle(id, outside(left))
	} else {
		for _, d := range r.Repaired {
			g.items.made(time.Now(), id, d)
		}
	}
	g.mu.Unlock()
	for _, d := range r.Repaired {
		g.tell(g.about(Repaired, id, d))
	}
	for _, one := range r.Remaining {
		if !errors.Is(one.Reason, cni.ErrHeld) || classOf(one.Difference)&g.options.Classes == 0 {
			continue
		}
		g.mu.Lock()
		news := g.items.note(id, one.Difference, Held)
		g.mu.Unlock()
		if news {
			g.tell(g.about(Held, id, one.Difference))
		}
	}
	if err != nil {
		g.fail(id, err)
	}
}

// failure returns why a repair is to be repeated, or nil.
func failure(r *cni.RepairReport) error {
	var errs []error
	for _, err := range r.Unknown {
		if !errors.Is(err, cni.ErrNotRepairable) && !errors.Is(err, cni.ErrNotAttached) {
			errs = append(errs, err)
		}
	}
	for _, left := range r.Remaining {
		if errors.As(left.Reason, new(*cni.Error)) {
			errs = append(errs, left.Reason)
		}
	}
	return errors.Join(errs...)
}

// busyFor is the number of attempts in a row, with pauses that double, for which a
// container may be busy without a report: another guard's repair takes a moment.
const busyFor = 4

// fail has the containers looked at again because of one, and reports why: a failure when
// it is news, and that the container is busy after 5, 9, 17 attempts in a row, and so on.
func (g *guard) fail(id string, err error) {
	busy := errors.Is(err, cni.ErrBusy)
	longest := lastRetry
	if busy {
		longest = lastBusy
	}
	g.mu.Lock()
	before := g.failed[id]
	now := failed{before.times + 1, err.Error()}
	g.failed[id] = now
	g.pace.retry(time.Now(), now.times, longest)
	g.mu.Unlock()
	news := now.told != before.told
	if busy {
		news = now.times > busyFor && bits.OnesCount(uint(now.times-1)) == 1
	}
	if news {
		g.tell(Event{Kind: Failed, ContainerID: id, Err: err})
	}
}
