package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/guarded"
	"github.com/embedcni/cni/internal/health"
	"github.com/embedcni/cni/internal/hold"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/hostwatch"
	"github.com/embedcni/cni/internal/record"
)

// guarding is a Guard that runs. It implements [guard.Host].
type guarding struct {
	*hostwatch.Watcher
	runtime *Runtime
	options GuardOptions
	host    *hostns.NetNS // that it watches
	records *guarded.Records

	reporting sync.Mutex
}

func (r *Runtime) guard(ctx context.Context, o GuardOptions) (err error) {
	if o.Classes == 0 {
		o.Classes = GuardClass(guard.All)
	}
	if o.Classes&^GuardClass(guard.All) != 0 {
		return fmt.Errorf("%w: class %#x", ErrInvalidArgument, uint8(o.Classes))
	}
	if o.GCInterval > 0 && o.GC == nil {
		return fmt.Errorf("%w: GCInterval is set, and GC is not", ErrInvalidArgument)
	}
	s := r.current.Load()
	if err := s.refuseInside(ctx); err != nil {
		return err
	}
	g := &guarding{runtime: r, options: o}
	if g.host, err = s.Hosts.Open(s.hostNetNS); err != nil {
		return err
	}
	defer func() { err = join(err, g.host.Close()) }()
	if g.Watcher, err = hostwatch.Open(g.host, guard.Class(o.Classes), hostwatch.Buffer); err != nil {
		return err
	}
	defer func() { err = join(err, g.Watcher.Close()) }()
	if g.records, err = guarded.Watch(s.Records.Dir()); err != nil {
		return err
	}
	defer func() { err = join(err, g.records.Close()) }()
	holds, err := s.holds().Watch()
	if err != nil {
		return err
	}
	defer func() { err = join(err, holds.Close()) }()
	defer r.unguarded.Store(nil)
	core := &guard.Guard{
		Host: g, Classes: guard.Class(o.Classes), Now: time.Now, Report: g.report, Jobs: g.jobs(),
		Sources: append(g.Watcher.All(), func(ctx context.Context, emit func(guard.Event)) error {
			return holds.Follow(ctx, func() { emit(guard.Event{Holds: true}) }) // after the end of one, its parts may be repaired
		}),
	}
	return core.Run(ctx)
}

// lookAgainIn limits the time of the repair of one container, so that one that hangs
// does not keep the others waiting.
const lookAgainIn = 30 * time.Second

// Look implements [guard.Host].
func (g *guarding) Look(ctx context.Context, whole bool, ids []string) (_ map[string]guard.Verdict, err error) {
	s := g.runtime.current.Load()
	var found []record.Found
	if whole {
		if found, err = s.owned(true, nil); err != nil {
			return nil, err
		}
	} else {
		for _, id := range ids {
			found = append(found, s.Records.Find(record.ID(id)))
		}
	}
	scope := g.scope(s)
	found = slices.DeleteFunc(found, func(f record.Found) bool { return f.Record == nil || f.Err != nil || !scope.Includes(f.Record) })
	holds, err := s.holds().List()
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]guard.Verdict)
	look := s.looking(ctx, g.host, true)
	look.Brief = true // Repair compares again
	for _, e := range look.All(ctx, found) {
		if v, ok := verdictOf(e, holds); ok {
			verdicts[string(e.Found.Record.ContainerID)] = v
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return verdicts, nil
}

// scope returns the scope of the guard: the containers that are attached in this boot of
// the machine, from the namespace that it watches.
func (g *guarding) scope(s *snapshot) guarded.Scope {
	return guarded.Scope{Owner: s.owner, Boot: s.Boot, Host: g.host.String()}
}

// verdictOf returns the verdict for the guard, if there is something to decide. A
// container that is gone, or cannot be compared for another reason than a call in
// progress, is the matter of Health and Recover.
func verdictOf(e *health.Container, holds []hold.Hold) (v guard.Verdict, ok bool) {
	if errors.Is(e.Reason, ErrBusy) {
		return guard.Verdict{Err: e.Reason, Busy: true}, true
	}
	if e.State != health.Compared {
		return v, false
	}
	for _, c := range e.Parts {
		for _, d := range c.Differences {
			if !d.Inside {
				v.Found = append(v.Found, foundOf(e.Found.Record, c.Network, c.IfName, d, holds))
			}
		}
		if c.Err != nil && len(c.Differences) == 0 && !errors.Is(c.Err, ErrNotRepairable) {
			v.Err = join(v.Err, c.Err)
		}
	}
	return v, len(v.Found) > 0 || v.Err != nil
}

// foundOf returns a difference for the guard.
func foundOf(rec *record.Record, network, ifName string, d compare.Difference, holds []hold.Hold) guard.Found {
	return guard.Found{
		Item: guard.Item{
			Container: string(rec.ContainerID), Network: network, IfName: ifName,
			Plugin: d.Plugin, Kind: string(d.Kind), Object: d.Object,
		},
		Class: guarded.ClassOf(d), Fixable: d.Fix != nil,
		Held:   isHeld(holds, rec, network),
		Detail: differenceOf(network, ifName, d),
	}
}

// Repair implements [guard.Host].
func (g *guarding) Repair(ctx context.Context, ids []string, want func(guard.Found) bool) map[string]guard.Repaired {
	ctx, cancel := context.WithTimeout(ctx, lookAgainIn)
	defer cancel()
	s := g.runtime.current.Load()
	all := make([]record.ID, len(ids))
	for i, id := range ids {
		all[i] = record.ID(id)
	}
	done := s.repairSome(ctx, g.host, all, func(a *attachment, holds []hold.Hold, d compare.Difference) bool { return want(a.found(d, holds)) }, nil)
	repaired := make(map[string]guard.Repaired)
	for id, m := range done.outcomes {
		o := guard.Outcome{}
		for _, part := range m.parts {
			for _, d := range part.outcome.Repaired {
				o.Made = append(o.Made, part.found(d, done.holds))
			}
			for _, left := range part.outcome.Left {
				if !left.Inside {
					o.Left = append(o.Left, part.found(left.Difference, done.holds))
				}
			}
		}
		repaired[string(id)] = guard.Repaired{Outcome: o, Err: m.err, Busy: errors.Is(m.err, ErrBusy)}
	}
	return repaired
}

// found returns a difference for the guard.
func (a *attachment) found(d compare.Difference, holds []hold.Hold) guard.Found {
	return foundOf(a.op.Record, a.network.config.Name, a.IfName, d, holds)
}

// Refresh implements [guard.Host].
func (g *guarding) Refresh(context.Context) ([]guard.Container, error) {
	s := g.runtime.current.Load()
	return g.records.Changed(s.Records, g.scope(s), s.logger)
}

// retryEvery is the interval at which a guard looks whether the time has come to repeat
// a removal that failed. The shortest such time is a second.
const retryEvery = time.Second

// jobs are what a guard does at intervals.
func (g *guarding) jobs() []guard.Job {
	var jobs []guard.Job
	add := func(j guard.Job) { jobs = append(jobs, j) }
	if g.options.Classes&GuardRules != 0 {
		legacy := &hostwatch.Legacy{Host: g.host}
		if g.options.LegacyInterval > 0 {
			add(guard.Job{Every: g.options.LegacyInterval, Do: func(_ context.Context, emit func(guard.Event)) {
				if err := legacy.Read(emit); err != nil {
					g.tell(GuardEvent{Kind: GuardFailed, Err: fmt.Errorf("read the legacy tables: %w", err)})
				}
			}})
		} else {
			add(guard.Job{Every: unguardedEvery, AtOnce: true, Do: g.tellUnguarded(legacy)})
		}
	}
	if !g.options.WithoutRetries {
		add(guard.Job{Every: retryEvery, Do: g.retryRemovals()})
	}
	if g.options.GCInterval > 0 {
		add(guard.Job{Every: g.options.GCInterval, Do: func(ctx context.Context, _ func(guard.Event)) { g.collect(ctx) }})
	}
	return jobs
}

// unguardedEvery is the interval at which a guard that does not read legacy tables looks
// whether anything is there to guard.
const unguardedEvery = 10 * time.Second

// tellUnguarded notes whether containers have rules in legacy tables, and reports each
// time that this has become so.
func (g *guarding) tellUnguarded(legacy *hostwatch.Legacy) func(context.Context, func(guard.Event)) {
	told := ""
	return func(context.Context, func(guard.Event)) {
		kind := GuardFailed
		used, err := legacy.Used()
		if err != nil {
			err = fmt.Errorf("read the legacy tables: %w", err)
		}
		if used {
			kind, err = GuardUnguarded, join(ErrUnguarded, err)
		}
		if err == nil {
			told = ""
			g.runtime.unguarded.Store(nil)
			return
		}
		g.runtime.unguarded.Store(&err)
		if told != err.Error() {
			told = err.Error()
			g.tell(GuardEvent{Kind: kind, Err: err})
		}
	}
}

// retryRemovals repeats removals that failed, when it is time. Nothing else may point at
// them, so it reads the records that have changed.
func (g *guarding) retryRemovals() func(context.Context, func(guard.Event)) {
	told := ""
	return func(ctx context.Context, _ func(guard.Event)) {
		s := g.runtime.current.Load()
		ids, err := g.records.Failed(s.Records, g.scope(s), s.logger)
		if err == nil {
			told = ""
		} else if told != err.Error() {
			told = err.Error()
			g.tell(GuardEvent{Kind: GuardFailed, Err: err})
		}
		for _, id := range ids {
			if ctx.Err() != nil {
				return
			}
			g.retryRemoval(ctx, s, id)
		}
	}
}

func (g *guarding) retryRemoval(ctx context.Context, s *snapshot, id record.ID) {
	rec, err := s.Records.Load(id)
	if err != nil || rec == nil || !rec.IsDue(s.owner, time.Now()) {
		return
	}
	removed, err := s.removeFailed(ctx, id)
	switch {
	case errors.Is(err, ErrBusy), errors.Is(err, errNotYet), ctx.Err() != nil:
	case err != nil:
		g.tell(GuardEvent{Kind: GuardFailed, ContainerID: string(id), Err: err})
	case removed:
		g.tell(GuardEvent{Kind: GuardRemoved, ContainerID: string(id)})
	}
}

// removeFailed removes those attachments of a container whose removal has failed before.
func (s *snapshot) removeFailed(ctx context.Context, id record.ID) (removed bool, err error) {
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	op, err := s.beginTeardown(brief, id, container.Access{})
	if err != nil {
		return false, err
	}
	defer op.end()
	if err := op.recallOwn(); err != nil {
		return false, err
	}
	if op.Record == nil || op.Damaged {
		return false, nil // removed since, or not legible enough
	}
	var going attachments
	for _, a := range op.attachments {
		if n := a.entry(); n != nil && n.Failures > 0 {
			going = append(going, a)
		}
	}
	if len(going) == 0 {
		return false, nil
	}
	op.KeepInhabited()
	err = op.finish(ctx, going)
	return err == nil, err
}

// collect runs GC, if the caller has options for it.
func (g *guarding) collect(ctx context.Context) {
	o, err := g.options.GC(ctx)
	if err != nil {
		if ctx.Err() == nil {
			g.tell(GuardEvent{Kind: GuardFailed, Err: fmt.Errorf("GC is left out: %w", err)})
		}
		return
	}
	bound, cancel := context.WithTimeout(ctx, g.options.GCInterval)
	defer cancel()
	report, err := g.runtime.GC(bound, o)
	if ctx.Err() == nil {
		g.tell(GuardEvent{Kind: GuardCollected, Report: report, Err: err})
	}
}
