package guard

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
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
		suspects: make(suspects),
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

	mu       sync.Mutex // guards what follows
	pace     pace
	suspects suspects
	by       string  // the process that was the last to change rules
	news     []Event // to be reported without the lock
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
	if g.host, err = g.openHost(); err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, g.host.close()) }()
	return g.until(ctx, append(g.host.sources, g.unannounced()...))
}

// until watches and repairs until ctx ends, or until a source fails.
func (g *guard) until(ctx context.Context, sources []source) error {
	inner, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	for _, watch := range sources {
		group.Go(func() {
			if err := thread.Try(func() error { return watch(inner) }); err != nil && inner.Err() == nil {
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
	g.locked(func() { g.pace.looked(time.Now(), time.Since(began), err) })
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

// locked calls do with the lock, and then reports the news of it.
func (g *guard) locked(do func()) {
	g.mu.Lock()
	do()
	news := g.news
	g.news = nil
	g.mu.Unlock()
	for _, e := range news {
		g.tell(e)
	}
}

// broken are containers to repair.
type broken struct {
	fresh []string
	again []string // whose repair has failed before
}

// judge takes the verdicts in. What nothing can be done about here is a matter of Recover.
func (g *guard) judge(all []cni.Health) (b broken) {
	final := func(reason error) bool {
		return errors.Is(reason, cni.ErrHostNetNS) || errors.Is(reason, cni.ErrInvalidNetNS) ||
			errors.Is(reason, cni.ErrNotRepairable) || errors.As(reason, new(*cni.RecordError))
	}
	g.locked(func() {
		for id := range g.suspects {
			ill := func(h cni.Health) bool {
				return h.ContainerID == id && (h.State == cni.StateBroken || h.State == cni.StateUnknown)
			}
			if !slices.ContainsFunc(all, ill) {
				g.suspects.settled(time.Now(), id, nil)
			}
		}
		for _, h := range all {
			switch id := h.ContainerID; {
			case h.State == cni.StateUnknown && !final(h.Reason):
				g.failed(id, h.Reason)
			case h.State != cni.StateBroken || !g.wantsAny(id, outside(h.Differences)):
			case g.suspects.of(id).failures == 0:
				b.fresh = append(b.fresh, id)
			default:
				b.again = append(b.again, id)
			}
		}
	})
	return b
}

// wantsAny decides about all differences of a container, and reports whether one of them
// is to be repaired.
func (g *guard) wantsAny(id string, found []cni.Difference) (any bool) {
	g.suspects.compared(time.Now(), id, found)
	for _, d := range found {
		any = g.decide(id, d) || any
	}
	if !any {
		g.suspects.settled(time.Now(), id, found)
	}
	return any
}

func outside(found []cni.Difference) []cni.Difference {
	return slices.DeleteFunc(slices.Clone(found), func(d cni.Difference) bool { return d.Inside })
}

// wants is decide, for a repair.
func (g *guard) wants(id string, d cni.Difference) (yes bool) {
	g.locked(func() { yes = g.decide(id, d) })
	return yes
}

// decide decides whether to repair one difference, and reports it if it is left.
func (g *guard) decide(id string, d cni.Difference) bool {
	what, news := g.suspects.decide(time.Now(), id, d, g.options.Classes)
	if news {
		g.add(what, id, d)
	}
	return what == Repaired
}

// add adds an event about a difference to the news.
func (g *guard) add(what Kind, id string, d cni.Difference) {
	e := Event{Kind: what, ContainerID: id, Difference: &d}
	if classOf(d) == Rules {
		e.By = g.by
	}
	g.news = append(g.news, e)
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
func (g *guard) repair(ctx context.Context, b broken) {
	g.repairSome(ctx, b.fresh)
	thread.Each(len(b.again), atOnce, func(i int) {
		err := g.host.do(func() error {
			g.repairSome(ctx, b.again[i:i+1])
			return nil
		})
		if err != nil {
			g.locked(func() { g.failed(b.again[i], err) })
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
	err := thread.Try(func() (err error) {
		reports, err = g.rt.RepairAll(bound, ids, cni.RepairOptions{Unheld: true, Want: g.wants})
		return err
	})
	if ctx.Err() != nil {
		return // it will be found by the next guard
	}
	g.locked(func() {
		for _, r := range reports {
			g.repaired(r)
		}
		if err != nil && len(reports) == 0 {
			for _, id := range ids {
				g.failed(id, err)
			}
		}
	})
}

// repaired takes the outcome of a repair in.
func (g *guard) repaired(r *cni.RepairReport) {
	id, now, err := r.ContainerID, time.Now(), failure(r)
	var left []cni.Difference
	for _, one := range r.Remaining {
		left = append(left, one.Difference)
	}
	if err == nil {
		g.suspects.settled(now, id, outside(left))
	}
	for _, d := range r.Repaired {
		if err != nil {
			g.suspects.of(id).part(d).whole(now)
		}
		g.add(Repaired, id, d)
	}
	for _, one := range r.Remaining {
		if d := one.Difference; errors.Is(one.Reason, cni.ErrHeld) && classOf(d)&g.options.Classes != 0 && g.suspects.note(id, d, Held) {
			g.add(Held, id, d)
		}
	}
	if err != nil {
		g.failed(id, err)
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
	return joined.Errors(errs...)
}

// busyFor is the number of attempts in a row, with pauses that double, for which a
// container may be busy without a report: another guard's repair takes a moment.
const busyFor = 4

// failed has the containers looked at again because of one, and reports why: a failure when
// it is news, and that the container is busy after 5, 9, 17 attempts in a row, and so on.
func (g *guard) failed(id string, err error) {
	s, longest := g.suspects.of(id), lastRetry
	news := s.told != err.Error()
	s.failures, s.told = s.failures+1, err.Error()
	if errors.Is(err, cni.ErrBusy) {
		longest = lastBusy
		news = s.failures > busyFor && bits.OnesCount(uint(s.failures-1)) == 1
	}
	g.pace.retry(time.Now(), s.failures, longest)
	if news {
		g.news = append(g.news, Event{Kind: Failed, ContainerID: id, Err: err})
	}
}
