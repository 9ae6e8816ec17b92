package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/kernel/confwatch"
	"github.com/embedcni/cni/internal/store/record"
)

const (
	// retryEvery is the shortest interval at which the records are looked through for
	// removals that failed, while there are any or records change. The shortest time after
	// which a removal is repeated is a second.
	retryEvery = time.Second
	// unguardedEvery is the interval at which a guard that has no LegacyInterval looks
	// whether anything is there to guard.
	unguardedEvery = 10 * time.Second
)

// jobs are what a guard does beside listening to the kernel.
func (g *guard) jobs() (jobs []source) {
	jobs = append(jobs, g.followHolds)
	if g.options.Classes&Rules != 0 && g.options.LegacyInterval > 0 {
		jobs = append(jobs, every(g.options.LegacyInterval, func(context.Context) { g.hear() }))
	} else if g.options.Classes&Rules != 0 {
		jobs = append(jobs, g.tellUnguarded)
	}
	if !g.options.WithoutRetries {
		jobs = append(jobs, g.retryRemovals)
	}
	if g.options.GCInterval > 0 {
		jobs = append(jobs, every(g.options.GCInterval, g.collect))
	}
	return jobs
}

// every returns a source that does something at an interval.
func every(interval time.Duration, do func(ctx context.Context)) source {
	return func(ctx context.Context) error {
		for pause(ctx, interval) {
			do(ctx)
		}
		return nil
	}
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// changes returns a function that reports an error unless it did so the last time. Nil is
// none.
func (g *guard) changes() func(Kind, error) {
	told := ""
	return func(kind Kind, err error) {
		if err == nil {
			told = ""
		} else if told != err.Error() {
			told = err.Error()
			g.tell(Event{Kind: kind, Err: err})
		}
	}
}

// tellUnguarded looks whether containers have rules in legacy tables, and reports each
// time that this has become so.
func (g *guard) tellUnguarded(ctx context.Context) error {
	for tell := g.changes(); ; {
		used, err := g.host.usesLegacyTables(ctx)
		switch {
		case err != nil:
			tell(Failed, fmt.Errorf("read the legacy tables: %w", err))
		case used:
			tell(Unguarded, ErrUnguarded)
		default:
			tell("", nil)
		}
		if !pause(ctx, unguardedEvery) {
			return nil
		}
	}
}

// ErrUnguarded is the error of an Unguarded event.
var ErrUnguarded = errors.New("containers have rules in legacy tables of iptables, which are not guarded without a LegacyInterval")

// followHolds has all containers looked at once the holds are followed, which is the
// guard's first look, and after each change of them: after the end of one, its parts may
// be repaired.
func (g *guard) followHolds(ctx context.Context) error {
	w := &confwatch.Watch{
		Sources: func() []confwatch.Source {
			return []confwatch.Source{{Path: record.HoldsIn(g.config.StateDir).Dir, Dir: true}}
		},
		Look: g.hear,
		Failed: func(err error) {
			if err != nil {
				g.tell(Event{Kind: Failed, Err: err})
			}
		},
	}
	return w.Run(ctx)
}

// retryRemovals repeats removals that failed, when it is time. Only the records say that
// there are any, so it looks at these when it begins, and once some have changed.
func (g *guard) retryRemovals(ctx context.Context) (err error) {
	dir := g.config.RecordDir
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := errors.Join(os.MkdirAll(dir, 0o700), w.Add(dir)); err != nil {
		return err
	}
	for tell := g.changes(); ; {
		began := time.Now()
		pending := g.retry(ctx, tell)
		for rest := time.After(max(retryEvery, restFor*time.Since(began))); rest != nil || !pending; {
			select {
			case <-ctx.Done():
				return nil
			case e := <-w.Events:
				pending = true
				if e.Name == dir {
					_ = w.Add(dir) // another one may be there by now
				}
			case <-w.Errors: // some changes are lost
				pending = true
			case <-rest:
				rest = nil
			}
		}
	}
}

// retry repeats removals, and reports whether some have to be repeated later.
func (g *guard) retry(ctx context.Context, tell func(Kind, error)) (pending bool) {
	report, err := g.rt.RetryRemovals(ctx)
	if ctx.Err() == nil {
		tell(Failed, err)
	}
	if err != nil {
		return true
	}
	for _, id := range report.Removed {
		g.tell(Event{Kind: Removed, ContainerID: id})
	}
	for _, id := range slices.Sorted(maps.Keys(report.Failed)) {
		g.tell(Event{Kind: Failed, ContainerID: id, Err: report.Failed[id]})
	}
	return len(report.Failed)+len(report.Skipped) > 0
}

// collect runs GC, if the caller has options for it.
func (g *guard) collect(ctx context.Context) {
	o, err := g.options.GC(ctx)
	if err != nil {
		if ctx.Err() == nil {
			g.tell(Event{Kind: Failed, Err: fmt.Errorf("GC is left out: %w", err)})
		}
		return
	}
	bound, cancel := context.WithTimeout(ctx, max(g.options.GCInterval, repairTime))
	defer cancel()
	report, err := g.rt.GC(bound, o)
	if ctx.Err() == nil {
		g.tell(Event{Kind: Collected, Report: report, Err: err})
	}
}
