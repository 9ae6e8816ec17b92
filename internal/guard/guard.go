package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Host is the host whose containers are guarded.
type Host interface {
	// Refresh returns the containers whose records have changed since the last call, at
	// the first call all.
	Refresh(ctx context.Context) ([]Container, error)
	// Interfaces lists the interfaces, and the ports of bridges. A port can be listed in
	// parts.
	Interfaces(ctx context.Context) ([]Link, []Port, error)
	// Look compares containers with their records, all of them if whole is set. It
	// returns those that differ, or that could not be compared.
	Look(ctx context.Context, whole bool, containers []string) (map[string]Verdict, error)
	// Repair locks containers, compares them anew, and makes those missing parts again
	// that are wanted. It calls want for each difference, perhaps several times, and for
	// several containers at once. It returns the outcome for some of the containers, at
	// least for one: those that it repairs together.
	Repair(ctx context.Context, containers []string, want func(Found) bool) map[string]Repaired
}

// Container is a container on record.
type Container struct {
	ID      string
	Guarded bool // else it is gone, unfinished, or being removed
	Signs   []Sign
}

// Verdict is the result of a comparison.
type Verdict struct {
	Found []Found
	Err   error // it could not be compared
	Busy  bool  // because another call for the container is under way
}

// Outcome is the result of a repair.
type Outcome struct {
	Made []Found // parts that are there again
	Left []Found // differences that remain
}

// Repaired is the outcome for one container. With an error, it is looked at again later.
type Repaired struct {
	Outcome
	Err  error
	Busy bool // nothing was done, since another call for the container is under way
}

// Source watches for events until the context ends, and calls emit with them. It returns an
// error if it ends before that.
type Source func(ctx context.Context, emit func(Event)) error

// Job is done at an interval, the first time after one interval.
type Job struct {
	Every  time.Duration
	AtOnce bool // the first time is at the begin
	Do     func(ctx context.Context, emit func(Event))
}

// Report is something that happened.
type Report struct {
	Kind ReportKind
	Found
	Container string // if it is about no difference
	By        string // the process that changed rules last; empty if not known
	Err       error
}

// ReportKind is the kind of a Report.
type ReportKind uint8

const (
	Begun  ReportKind = iota // from here on every change is noticed
	Looked                   // all containers, or some, were compared
	Mended                   // a part was made again
	Left                     // a part is left as it is; see Decision
	Failed                   // a look, or a repair
)

// Guard is a guard of a host.
type Guard struct {
	Host    Host
	Classes Class
	Sources []Source
	Jobs    []Job
	Now     func() time.Time
	// Report is called with what happened, by one goroutine at a time.
	Report func(r Report, d Decision)
}

// atOnce is the number of containers that are repaired at the same time, each by itself.
const atOnce = 16

// Run guards until the context ends; then it returns nil. All that it has started has
// ended when it returns.
func (g *Guard) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{Guard: g, core: NewCore(g.Classes), wake: make(chan struct{}, 1)}
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(errEnded)
	for _, source := range g.Sources {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := r.listen(ctx, source); err != nil {
				cancel(err)
			}
		}()
	}
	for _, job := range g.Jobs {
		group.Add(1)
		go func() {
			defer group.Done()
			r.repeat(ctx, job)
		}()
	}
	outer := ctx
	if err := r.loop(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	if err := context.Cause(outer); errors.As(err, new(*sourceError)) {
		return err
	}
	return nil
}

var errEnded = errors.New("the guard has ended")

// sourceError: a source has ended.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// run is a guard that runs.
type run struct {
	*Guard
	mu        sync.Mutex
	core      *Core
	wake      chan struct{}
	reporting sync.Mutex
	relearn   bool // the interfaces are to be listed, since announcements were lost
}

func (r *run) listen(ctx context.Context, source Source) (err error) {
	defer func() {
		if v := recover(); v != nil { // in this goroutine it would end the program
			err = &sourceError{fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
		}
	}()
	if err := source(ctx, r.take); err != nil && ctx.Err() == nil {
		return &sourceError{err}
	}
	return nil
}

func (r *run) repeat(ctx context.Context, job Job) {
	if job.AtOnce {
		r.do(ctx, job)
	}
	timer := time.NewTimer(job.Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		r.do(ctx, job)
		timer.Reset(job.Every)
	}
}

func (r *run) do(ctx context.Context, job Job) {
	defer func() {
		if v := recover(); v != nil {
			r.report(Report{Kind: Failed, Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}, "")
		}
	}()
	job.Do(ctx, r.take)
}

// take takes an event in, and wakes the loop if there is something new to do.
func (r *run) take(e Event) {
	r.mu.Lock()
	before := r.core.SettledAt()
	r.core.Take(r.Now(), e)
	r.relearn = r.relearn || e.Lost&Links != 0
	at := r.core.SettledAt()
	news := !at.IsZero() && (before.IsZero() || at.Before(before))
	r.mu.Unlock()
	if news {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

func (r *run) report(rep Report, d Decision) {
	if r.Report == nil {
		return
	}
	r.reporting.Lock()
	defer r.reporting.Unlock()
	r.Report(rep, d)
}

// loop looks and repairs whenever something is due.
func (r *run) loop(ctx context.Context) error {
	if err := r.learn(ctx); err != nil {
		return err
	}
	if err := r.refresh(ctx); err != nil {
		return err
	}
	r.report(Report{Kind: Begun}, "")
	for ctx.Err() == nil {
		r.prepare(ctx)
		r.mu.Lock()
		now := r.Now()
		task, due, next := r.core.Due(now)
		r.mu.Unlock()
		if due {
			r.follow(ctx, task)
			continue
		}
		if err := r.wait(ctx, now, next); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (r *run) wait(ctx context.Context, now, until time.Time) error {
	var at <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(max(until.Sub(now), 0))
		defer timer.Stop()
		at = timer.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.wake:
	case <-at:
	}
	return nil
}

// prepare gathers the signs that are due, and then reads the changed records: the records
// are never older than the signs. If the reading fails, the core keeps the records that it
// has, and looks at all containers.
func (r *run) prepare(ctx context.Context) {
	r.mu.Lock()
	gathered, relearn := r.core.Gather(r.Now()), r.relearn
	r.mu.Unlock()
	if !gathered {
		return
	}
	var err error
	if relearn {
		err = r.learn(ctx)
	}
	if err = errors.Join(err, r.refresh(ctx)); err != nil && ctx.Err() == nil {
		r.report(Report{Kind: Failed, Err: err}, "")
		r.take(Event{Lost: All})
	}
}

func (r *run) learn(ctx context.Context) error {
	r.mu.Lock()
	r.relearn = false
	r.mu.Unlock()
	all, ports, err := r.Host.Interfaces(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.Links(all, ports)
	return nil
}

func (r *run) refresh(ctx context.Context) error {
	changed, err := r.Host.Refresh(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changed {
		if c.Guarded {
			r.core.Index.Set(c.ID, c.Signs)
		} else {
			r.core.Forget(c.ID)
		}
	}
	return err
}

// follow looks at containers, and repairs those that want it.
func (r *run) follow(ctx context.Context, task Task) {
	began := r.Now()
	verdicts, err := r.Host.Look(ctx, task.Whole, task.Containers)
	r.mu.Lock()
	now := r.Now()
	r.core.Looked(now, now.Sub(began), err)
	r.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			r.report(Report{Kind: Failed, Err: err}, "")
		}
		return
	}
	r.report(Report{Kind: Looked}, "")
	r.repairSome(ctx, r.judge(task, verdicts))
}
