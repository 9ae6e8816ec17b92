package cnitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/guard"
)

// Guard is Runtime.Guard of package cni. It repairs what Break breaks.
func (f *Fake) Guard(ctx context.Context, o cni.GuardOptions) (err error) {
	defer f.record(FakeCall{Method: "Guard"}, &err)
	if o.Classes == 0 {
		o.Classes = cni.GuardClass(guard.All)
	}
	switch {
	case o.Classes&^cni.GuardClass(guard.All) != 0:
		return fmt.Errorf("guard: %w: class %#x", cni.ErrInvalidArgument, uint8(o.Classes))
	case o.GCInterval > 0 && o.GC == nil:
		return fmt.Errorf("guard: %w: GCInterval is set, and GC is not", cni.ErrInvalidArgument)
	}
	g := &fakeGuard{f: f, o: o}
	changed, forget := f.h.subscribe() // before the engine says that it has begun
	defer forget()
	engine := &guard.Guard{
		Host: g, Classes: guard.Class(o.Classes), Now: time.Now, Report: g.report, Jobs: g.jobs(),
		Sources: []guard.Source{announced(changed)},
	}
	return engine.Run(ctx)
}

// fakeGuard is a Guard that runs. It implements [guard.Host].
type fakeGuard struct {
	f *Fake
	o cni.GuardOptions

	reporting sync.Mutex
}

// announce tells guards that something has changed. The host is locked.
func (h *fakeHost) announce() {
	for _, listener := range h.listeners {
		select {
		case listener <- struct{}{}:
		default: // it has been told, and has not looked since
		}
	}
}

// subscribe returns a channel that gets a value after changes, until forget is called.
func (h *fakeHost) subscribe() (changed chan struct{}, forget func()) {
	changed = make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners = append(h.listeners, changed)
	return changed, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.listeners = slices.DeleteFunc(h.listeners, func(other chan struct{}) bool { return other == changed })
	}
}

// announced announces each change as one that may concern every container.
func announced(changed <-chan struct{}) guard.Source {
	return func(ctx context.Context, emit func(guard.Event)) error {
		for {
			select {
			case <-changed:
				emit(guard.Event{Lost: guard.All})
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// Refresh implements [guard.Host]. Every event concerns all containers.
func (g *fakeGuard) Refresh(context.Context) ([]guard.Container, error) { return nil, nil }

// Interfaces implements [guard.Host].
func (g *fakeGuard) Interfaces(context.Context) ([]guard.Link, []guard.Port, error) {
	return nil, nil, nil
}

// guarded returns the attachments that are to be whole. The host is locked.
func (g *fakeGuard) guarded(id, owner string) (all []*fakeAttachment) {
	c := g.f.h.containers[id]
	if c == nil || c.dead {
		return nil
	}
	for _, a := range c.attachments {
		if a.owner == owner && !a.warm && !isUnfinished(c.attachments, a) {
			all = append(all, a)
		}
	}
	return all
}

// found describes a difference to the engine. The host is locked.
func (g *fakeGuard) found(id string, a *fakeAttachment, d cni.Difference) guard.Found {
	return guard.Found{
		Item: guard.Item{
			Container: id, Network: a.Network, IfName: a.IfName, Plugin: d.Plugin, Kind: string(d.Kind), Object: d.Object,
		},
		Class: classOf(d.Kind), Fixable: d.Repairable, Held: g.f.h.isHeld(id, a.Network), Detail: d,
	}
}

func classOf(kind cni.DifferenceKind) guard.Class {
	switch kind {
	case cni.KindRule, cni.KindPort, cni.KindZone:
		return guard.Rules
	case cni.KindRoute:
		return guard.Routes
	}
	return guard.Links
}

// Look implements [guard.Host].
func (g *fakeGuard) Look(_ context.Context, whole bool, ids []string) (map[string]guard.Verdict, error) {
	if whole {
		ids = g.f.h.ids()
	}
	me := g.f.me()
	g.f.h.mu.Lock()
	defer g.f.h.mu.Unlock()
	verdicts := map[string]guard.Verdict{}
	for _, id := range ids {
		var v guard.Verdict
		for _, a := range g.guarded(id, me) {
			for _, d := range a.broken {
				if !d.Inside {
					v.Found = append(v.Found, g.found(id, a, d))
				}
			}
		}
		if len(v.Found) == 0 {
			continue
		}
		if g.f.h.locked[id] != nil {
			v = guard.Verdict{Err: cni.ErrBusy, Busy: true}
		}
		verdicts[id] = v
	}
	return verdicts, nil
}

// Repair implements [guard.Host].
func (g *fakeGuard) Repair(ctx context.Context, ids []string, want func(guard.Found) bool) map[string]guard.Repaired {
	repaired := map[string]guard.Repaired{}
	for _, id := range ids {
		repaired[id] = g.repair(ctx, id, want)
	}
	return repaired
}

func (g *fakeGuard) repair(ctx context.Context, id string, want func(guard.Found) bool) (r guard.Repaired) {
	unlock, err := g.f.h.lockBriefly(ctx, id)
	if err != nil {
		return guard.Repaired{Err: err, Busy: errors.Is(err, cni.ErrBusy)}
	}
	defer unlock()
	me := g.f.me()
	g.f.h.mu.Lock()
	defer g.f.h.mu.Unlock()
	for _, a := range g.guarded(id, me) {
		var left []cni.Difference
		for _, d := range a.broken {
			found := g.found(id, a, d)
			switch {
			case d.Inside:
				left = append(left, d)
			case d.Repairable && want(found):
				r.Made = append(r.Made, found)
			default:
				left, r.Left = append(left, d), append(r.Left, found)
			}
		}
		a.broken = left
	}
	return r
}

// jobs are what a guard does at intervals.
func (g *fakeGuard) jobs() (jobs []guard.Job) {
	if !g.o.WithoutRetries {
		jobs = append(jobs, guard.Job{Every: time.Second, Do: func(ctx context.Context, _ func(guard.Event)) { g.retry(ctx) }})
	}
	if g.o.GCInterval > 0 {
		jobs = append(jobs, guard.Job{Every: g.o.GCInterval, Do: func(ctx context.Context, _ func(guard.Event)) { g.collect(ctx) }})
	}
	return jobs
}

// retry repeats removals that failed, when it is time.
func (g *fakeGuard) retry(ctx context.Context) {
	for _, id := range g.f.h.ids() {
		unlock, err := g.f.h.lockBriefly(ctx, id)
		if err != nil {
			continue
		}
		mine, _ := g.f.h.mine(id, g.f.me())
		g.f.h.mu.Lock()
		going := slices.DeleteFunc(mine, func(a *fakeAttachment) bool { return a.failures == 0 })
		g.f.h.mu.Unlock()
		if len(going) > 0 {
			switch err := g.f.finish(ctx, id, going); {
			case errors.Is(err, errNotYet):
			case err != nil:
				g.tell(cni.GuardEvent{Kind: cni.GuardFailed, ContainerID: id, Err: err})
			default:
				g.tell(cni.GuardEvent{Kind: cni.GuardRemoved, ContainerID: id})
			}
		}
		unlock()
	}
}

// collect runs GC, if the caller has options for it.
func (g *fakeGuard) collect(ctx context.Context) {
	o, err := g.o.GC(ctx)
	if err != nil {
		g.tell(cni.GuardEvent{Kind: cni.GuardFailed, Err: fmt.Errorf("GC is left out: %w", err)})
		return
	}
	report, err := g.f.GC(ctx, o)
	g.tell(cni.GuardEvent{Kind: cni.GuardCollected, Report: report, Err: err})
}

// report reports an event of the engine.
func (g *fakeGuard) report(r guard.Report, d guard.Decision) {
	e := cni.GuardEvent{ContainerID: r.Container, Err: r.Err}
	if detail, ok := r.Detail.(cni.Difference); ok {
		e.ContainerID, e.Difference = r.Found.Container, &detail
	}
	switch r.Kind {
	case guard.Begun:
		e.Kind = cni.GuardBegun
	case guard.Looked:
		e.Kind = cni.GuardLooked
	case guard.Mended:
		e.Kind = cni.GuardRepaired
	case guard.Failed:
		e.Kind = cni.GuardFailed
	case guard.Left:
		switch e.Kind = cni.GuardLeft; d {
		case guard.Contested:
			e.Kind = cni.GuardContested
		case guard.Held:
			e.Kind = cni.GuardHeld
		}
	}
	g.tell(e)
}

func (g *fakeGuard) tell(e cni.GuardEvent) {
	g.reporting.Lock()
	defer g.reporting.Unlock()
	e.Time = time.Now()
	if g.o.Report != nil {
		g.o.Report(e)
	}
}
