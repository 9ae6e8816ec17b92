package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
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

// guard keeps other calls for the container out, in this and in other processes.
type guard struct {
	locks *Locks
	id    record.ID
	held  *lock.Held
}

// Lock waits until no other call for the container is in progress. If it has to wait for plugins that a dead runtime has left
// running, it kills them after orphanGrace.
func (g *guard) Lock(ctx context.Context, how Access) error {
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
			err = fmt.Errorf("%w: killed processes %v, which have not ended", ErrBusy, ended)
		}
		if how.Waiting != Hurried || !errors.Is(err, ErrBusy) {
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
func (g *guard) LockForTeardown(ctx context.Context, how Access) error {
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
func (g *guard) TryLock() (locked bool, err error) {
	g.held, err = g.locks.TryExisting(g.keys(false))
	return g.held != nil, err
}

func (g *guard) unlock() {
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

func (g *guard) keys(hasBarrier bool) []lock.Key {
	keys := []lock.Key{{Name: key(g.id)}}
	if !hasBarrier {
		keys = append(keys, lock.Key{Name: Barrier, Shared: true})
	}
	return keys
}

// LockFile returns the open file by which the container is locked, or nil.
// Plugins inherit it: a plugin that outlives a killed runtime keeps the lock, so
// that nobody works on the container at the same time.
func (g *guard) LockFile() *os.File {
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
	if busy := context.Cause(ctx); err != nil && errors.Is(busy, ErrBusy) {
		return busy
	}
	return err
}
