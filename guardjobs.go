package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostwatch"
	"github.com/embedcni/cni/internal/record"
)

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
		ids, err := g.failedRemovals(s)
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
	if err != nil || rec == nil || !isDue(rec, s.owner) {
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

// failedRemovals returns the containers with a removal that failed or was cut short. With
// an error these are those that are known.
func (g *guarding) failedRemovals(s *snapshot) (ids []record.ID, err error) {
	k := &g.records
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.refresh(s, func(rec *record.Record) bool { return g.guards(s, rec) })
	for id := range k.retry {
		ids = append(ids, id)
	}
	return ids, err
}

// isDue reports whether it is time to repeat the removal of an attachment of an owner.
func isDue(rec *record.Record, owner string) bool {
	for i := range rec.Attachments {
		n := &rec.Attachments[i]
		if n.State != record.Deleted && n.Failures > 0 && rec.OwnerOf(n) == owner && n.RetryIn(time.Now()) <= 0 {
			return true
		}
	}
	return false
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

// watchHolds watches the directory of holds, which it makes.
func (g *guarding) watchHolds(s *snapshot) (*dirwatch.Watch, error) {
	dir := s.holds().Dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return dirwatch.Open(dir)
}

// watchHolds watches for holds that come and go: after the end of one, its parts may be
// repaired.
func watchHolds(ctx context.Context, w *dirwatch.Watch, emit func(guard.Event)) error {
	if _, err := w.Now(); err != nil {
		return err
	}
	for {
		if err := w.Wait(ctx); err != nil {
			return err
		}
		if _, err := w.Now(); err != nil {
			return err
		}
		emit(guard.Event{Holds: true})
	}
}

// kindOf returns the kind of the event for a decision that leaves something.
func kindOf(d guard.Decision) GuardEventKind {
	switch d {
	case guard.Contested:
		return GuardContested
	case guard.Held:
		return GuardHeld
	}
	return GuardLeft
}

// report reports an event of the core.
func (g *guarding) report(r guard.Report, d guard.Decision) {
	e := GuardEvent{ContainerID: r.Container, By: r.By, Err: r.Err}
	if detail, ok := r.Detail.(Difference); ok {
		e.ContainerID, e.Difference = r.Found.Container, &detail
	}
	switch r.Kind {
	case guard.Begun:
		e.Kind = GuardBegun
	case guard.Looked:
		e.Kind = GuardLooked
	case guard.Mended:
		e.Kind = GuardRepaired
	case guard.Left:
		e.Kind = kindOf(d)
	case guard.Failed:
		e.Kind = GuardFailed
	}
	g.tell(e)
}

// tell reports an event to the log and to the caller.
func (g *guarding) tell(e GuardEvent) {
	g.reporting.Lock()
	defer g.reporting.Unlock()
	e.Time = time.Now()
	level := slog.LevelInfo
	switch e.Kind {
	case GuardLooked:
		level = slog.LevelDebug
	case GuardContested, GuardFailed, GuardUnguarded:
		level = slog.LevelWarn
	}
	logger := g.runtime.current.Load().logger
	if e.ContainerID != "" {
		logger = logger.With("container", e.ContainerID)
	}
	logger.Log(context.Background(), level, "guard: "+string(e.Kind), "difference", e.Difference, "by", e.By, "error", e.Err)
	if g.options.Report != nil {
		g.options.Report(e)
	}
}
