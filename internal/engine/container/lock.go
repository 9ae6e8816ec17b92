package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// orphanGrace is the time that plugins of a dead runtime get to finish. A plugin
// that finishes leaves less behind than one that is killed.
const orphanGrace = 2 * time.Second

// Waiting is the way a call waits for a container that another call has locked.
type Waiting int

const (
	Patient Waiting = iota // as long as the context allows; kills orphans
	Hurried                // not for a live process
	Looking                // only reads, and so kills nothing
)

// Access configures how a call locks a container.
type Access struct {
	Waiting    Waiting
	HasBarrier bool // the caller has the barrier already, alone
}

// Guard keeps other calls for the container out, in this and in other processes.
type Guard struct {
	locks *Locks
	id    record.ID
	held  *lock.Held
}

// Lock waits until no other call for the container is in progress. If it has to wait for plugins that a dead runtime has left
// running, it kills them after orphanGrace.
func (g *Guard) Lock(ctx context.Context, how Access) error {
	lockAll := func(ctx context.Context) (err error) {
		g.held, err = g.locks.LockAll(ctx, g.keys(how.HasBarrier))
		return err
	}
	if how.Waiting == Looking {
		return lockAll(ctx)
	}
	return whileWaiting(ctx, lockAll, func(look int) error {
		rec, _ := g.locks.records.Load(g.id) // of a damaged record, the legible part
		ended, err := g.locks.endOrphans(g.id, lock.Byte(key(g.id)), rec)
		if err == nil && len(ended) > 0 && look == mostLooks {
			err = fmt.Errorf("%w: killed processes %v, which have not ended", outcome.ErrBusy, ended)
		}
		if how.Waiting != Hurried || !errors.Is(err, outcome.ErrBusy) {
			return nil
		}
		return err
	})
}

// teardownWait bounds how long LockForTeardown waits for another call. It is
// longer than a plugin's default time for ADD, so that a Remove that waits for a
// hanging Setup gets its turn when that is given up.
const teardownWait = 5 * time.Minute

// LockForTeardown is Lock, but continues if the lock file cannot be used: a full
// or read-only disk must not keep a container attached. It does not exclude
// other processes then.
func (g *Guard) LockForTeardown(ctx context.Context, how Access) error {
	ctx, cancel := context.WithTimeout(ctx, teardownWait)
	defer cancel()
	err := g.Lock(ctx, how)
	if !errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	g.locks.logger.Warn("removing without a lock between processes", "container", g.id, "error", err)
	g.held, err = g.locks.LockLocal(ctx, g.keys(how.HasBarrier))
	return err
}

// TryLock locks the container as Lock does, for work in the background, unless it would
// have to wait or there is no lock file any more.
func (g *Guard) TryLock() (locked bool, err error) {
	g.held, err = g.locks.TryExisting(g.keys(false))
	return g.held != nil, err
}

func (g *Guard) unlock() {
	if g.held == nil {
		return
	}
	if err := g.held.Release(); err != nil {
		g.locks.logger.Error("release lock", "container", g.id, "error", err)
	}
	g.held = nil
}

// key returns the key by which calls for one container exclude each other.
func key(id record.ID) string { return "container/" + string(id) }

func (g *Guard) keys(hasBarrier bool) []lock.Key {
	keys := []lock.Key{{Name: key(g.id)}}
	if !hasBarrier {
		keys = append(keys, lock.Key{Name: Barrier, Shared: true})
	}
	return keys
}

// LockFile returns the open file by which the container is locked, or nil.
// Plugins inherit it: a plugin that outlives a killed runtime keeps the lock, so
// that nobody works on the container at the same time.
func (g *Guard) LockFile() *os.File {
	if g.held == nil {
		return nil
	}
	return g.held.File()
}

// mostLooks limits how often a hurried call looks for orphans that it has
// killed.
const mostLooks = 3

// whileWaiting runs wait. If that takes longer than orphanGrace, it runs look,
// repeatedly with doubling pauses, and cancels wait if look returns an error.
// look has returned when whileWaiting returns, so it never meets processes that
// the caller starts afterwards.
func whileWaiting(ctx context.Context, wait func(context.Context) error, look func(n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	timer := time.AfterFunc(orphanGrace, func() {
		defer close(over)
		for n, pause := 1, time.Second; ctx.Err() == nil; n, pause = n+1, min(2*pause, 10*time.Second) {
			if err := look(n); err != nil {
				cancel(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	err := wait(ctx)
	if timer.Stop() {
		return err
	}
	cancel(nil)
	<-over
	if busy := context.Cause(ctx); err != nil && errors.Is(busy, outcome.ErrBusy) {
		return busy
	}
	return err
}

// Locks lets one call at a time work on a container, and GC while there is no ADD or
// DEL. It kills plugins of dead runtimes that would hold up the others.
type Locks struct {
	*lock.Space
	records *record.Store
	process *Process
	logger  *slog.Logger
}

// Barrier is the key that ADDs and DELs share and GC takes exclusively, because
// the specification forbids GC beside them. It is taken before the keys of
// containers, of which GC takes one for each container that it removes.
const Barrier = lock.First

// While GC waits for the barrier, no other call gets past it. GC has to wait
// there, because calls that overlap would otherwise keep it out for ever. It
// must not wait long, because a single plugin that hangs would hold up every
// container.
//
// So GC waits for as long as calls take, and then steps aside for a longer time,
// in which it takes the barrier only if that is free. Each wait is longer than
// the last, up to longestStand. So GC is kept out for good only by plugins that
// take longer than longestStand and overlap each other.
const (
	shortestStand = 250 * time.Millisecond
	longestStand  = 2 * time.Second
	asideFor      = 4 // times as long as it stood
)

// LockBarrier waits until no ADD or DEL is in progress. It kills plugins of dead
// runtimes.
func (l *Locks) LockBarrier(ctx context.Context) (held *lock.Held, err error) {
	err = whileWaiting(ctx, func(ctx context.Context) (err error) {
		held, err = l.queueForBarrier(ctx)
		return err
	}, func(int) error {
		if err := l.endOrphansAtBarrier(); err != nil {
			l.logger.Warn("look for plugins that a dead runtime has left running", "error", err)
		}
		return nil
	})
	return held, err
}

func (l *Locks) queueForBarrier(ctx context.Context) (*lock.Held, error) {
	for stand := shortestStand; ; stand = min(2*stand, longestStand) {
		standing, cancel := context.WithTimeout(ctx, stand)
		held, err := l.LockAll(standing, []lock.Key{{Name: Barrier}})
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return held, err
		}
		if held, err = l.stepAside(ctx, asideFor*stand); held != nil || err != nil {
			return held, err
		}
	}
}

// stepAside lets others pass for a time. It takes the barrier if it becomes free
// meanwhile, and otherwise returns nil.
func (l *Locks) stepAside(ctx context.Context, long time.Duration) (*lock.Held, error) {
	over := time.NewTimer(long)
	defer over.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if held, err := l.TryLockAll([]lock.Key{{Name: Barrier}}); held != nil || err != nil {
			return held, err
		}
		select {
		case <-ctx.Done():
			return nil, nil // the next LockAll says so
		case <-over.C:
			return nil, nil
		case <-again.C:
		}
	}
}

// endOrphans kills the processes that keep a container locked although the
// runtime that locked it is dead, and returns their numbers. It returns ErrBusy
// if the lock has a holder that is not known to be such a process.
//
// The mark of a live runtime identifies it (see package lock). A runtime of an
// earlier version is identified by the record, or else because it has the lock
// by a descriptor that it opened itself. rec is nil if nothing is on record: a
// DEL of an attachment of go-cni writes no record.
func (l *Locks) endOrphans(id record.ID, offset int64, rec *record.Record) (ended []int, err error) {
	state, err := l.State(offset)
	if err != nil || state == lock.Free {
		return nil, err
	}
	alive := state == lock.Kept
	if !alive && rec != nil && (rec.Runtime != "" || rec.Life != "") {
		if alive, err = l.process.RuntimeAlive(rec); err != nil {
			return nil, err
		}
	}
	holders, err := proc.Holders(l.Path(), offset)
	defer proc.CloseHolders(holders)
	var opened []string
	for _, h := range holders {
		if h.Opened {
			opened = append(opened, proc.Describe(h.PID))
		}
	}
	switch {
	case alive && err != nil:
		return nil, fmt.Errorf("%w in a process that could not be looked for: %w", outcome.ErrBusy, err)
	case err != nil:
		return nil, err
	case len(opened) > 0:
		return nil, fmt.Errorf("%w in %s", outcome.ErrBusy, strings.Join(opened, ", "))
	case alive || len(holders) == 0:
		return nil, fmt.Errorf("%w in a process that cannot be seen from here", outcome.ErrBusy)
	}
	// They may have ended during the search, and another call begun.
	if state, err = l.State(offset); err != nil || state != lock.Inherited {
		return nil, err
	}
	return l.end(id, holders)
}

func (l *Locks) end(id record.ID, holders []*proc.Holder) (ended []int, err error) {
	var errs []error
	for _, h := range holders {
		killed, err := h.Kill()
		errs = append(errs, err)
		if killed {
			ended = append(ended, h.PID)
		}
	}
	err = joined.Errors(errs...)
	if len(ended) > 0 || err != nil {
		l.logger.Warn("killed plugins of a dead runtime", "container", id, "processes", ended, "error", err)
	}
	return ended, err
}

// endOrphansAtBarrier kills the plugins that a dead runtime has left running and
// that have the barrier. They have the lock of their container too, on the same
// description.
func (l *Locks) endOrphansAtBarrier() error {
	holders, err := proc.Holders(l.Path(), lock.Byte(Barrier))
	if err != nil {
		return err
	}
	defer proc.CloseHolders(holders)
	found, err := l.records.List()
	if err != nil {
		return err
	}
	records := map[int64]*record.Record{}
	for _, f := range found {
		records[lock.Byte(key(f.Record.ContainerID))] = f.Record
	}
	done := map[int64]bool{}
	var errs []error
	for _, h := range holders {
		for _, offset := range h.Keys() {
			if done[offset] {
				continue
			}
			done[offset] = true
			rec, id := records[offset], record.ID("")
			if rec != nil {
				id = rec.ContainerID
			}
			if _, err := l.endOrphans(id, offset, rec); !errors.Is(err, outcome.ErrBusy) {
				errs = append(errs, err)
			}
		}
	}
	return joined.Errors(errs...)
}
