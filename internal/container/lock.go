package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
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

// Lock waits until no other call for the container is in progress, in this or
// another process. If it has to wait for plugins that a dead runtime has left
// running, it kills them after orphanGrace.
func (c *Container) Lock(ctx context.Context, how Access) error {
	lockAll := func(ctx context.Context) (err error) {
		c.held, err = c.in.Locks.LockAll(ctx, c.keys(how.HasBarrier))
		return err
	}
	if how.Waiting == Looking {
		return lockAll(ctx)
	}
	return whileWaiting(ctx, lockAll, func(look int) error {
		rec, _ := c.in.Records.Load(c.ID) // of a damaged record, the legible part
		ended, err := c.in.endOrphans(c.ID, lock.Byte(key(c.ID)), rec)
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
func (c *Container) LockForTeardown(ctx context.Context, how Access) error {
	ctx, cancel := context.WithTimeout(ctx, teardownWait)
	defer cancel()
	err := c.Lock(ctx, how)
	if !errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	c.in.Logger.Warn("removing without a lock between processes", "container", c.ID, "error", err)
	c.held, err = c.in.Locks.LockLocal(ctx, c.keys(how.HasBarrier))
	return err
}

// TryLock locks the container as Lock does, unless it would have to wait.
func (c *Container) TryLock() (locked bool, err error) {
	c.held, err = c.in.Locks.TryLockAll(c.keys(false))
	return c.held != nil, err
}

// Barrier is the key that ADDs and DELs share and GC takes exclusively, because
// the specification forbids GC beside them. It is taken before the keys of
// containers, of which GC takes one for each container that it removes.
const Barrier = lock.First

// key returns the key by which calls for one container exclude each other.
func key(id record.ID) string { return "container/" + string(id) }

func (c *Container) keys(hasBarrier bool) []lock.Key {
	keys := []lock.Key{{Name: key(c.ID)}}
	if !hasBarrier {
		keys = append(keys, lock.Key{Name: Barrier, Shared: true})
	}
	return keys
}

// LockFile returns the open file by which the container is locked, or nil.
// Plugins inherit it: a plugin that outlives a killed runtime keeps the lock, so
// that nobody works on the container at the same time.
func (c *Container) LockFile() *os.File {
	if c.held == nil {
		return nil
	}
	return c.held.File()
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

// endOrphans kills the processes that keep a container locked although the
// runtime that locked it is dead, and returns their numbers. It returns ErrBusy
// if the lock has a holder that is not known to be such a process.
//
// The mark of a live runtime identifies it (see package lock). A runtime of an
// earlier version is identified by the record, or else because it has the lock
// by a descriptor that it opened itself. rec is nil if nothing is on record: a
// DEL of an attachment of go-cni writes no record.
func (s *Store) endOrphans(id record.ID, offset int64, rec *record.Record) (ended []int, err error) {
	state, err := s.Locks.State(offset)
	if err != nil || state == lock.Free {
		return nil, err
	}
	alive := state == lock.Kept
	if !alive && rec != nil && (rec.Runtime != "" || rec.Life != "") {
		if alive, err = s.RuntimeAlive(rec); err != nil {
			return nil, err
		}
	}
	if alive {
		return nil, fmt.Errorf("%w in %s", ErrBusy, s.holder(offset))
	}
	holders, err := orphan.Holders(s.Locks.Path(), offset)
	if err != nil {
		return nil, err
	}
	defer orphan.Close(holders)
	if len(holders) == 0 {
		return nil, fmt.Errorf("%w in a process that cannot be seen from here", ErrBusy)
	}
	for _, h := range holders {
		if h.Opened {
			return nil, fmt.Errorf("%w in %s", ErrBusy, orphan.Describe(h.PID))
		}
	}
	// They may have ended during the search, and another call begun.
	if state, err = s.Locks.State(offset); err != nil || state != lock.Inherited {
		return nil, err
	}
	return s.end(id, holders)
}

func (s *Store) end(id record.ID, holders []*orphan.Holder) (ended []int, err error) {
	var errs []error
	for _, h := range holders {
		killed, err := h.Kill()
		errs = append(errs, err)
		if killed {
			ended = append(ended, h.PID)
		}
	}
	err = errors.Join(errs...)
	if len(ended) > 0 || err != nil {
		s.Logger.Warn("killed plugins of a dead runtime", "container", id, "processes", ended, "error", err)
	}
	return ended, err
}

// holder describes the process that has the byte locked by a descriptor of its
// own.
func (s *Store) holder(offset int64) string {
	holders, err := orphan.Holders(s.Locks.Path(), offset)
	if err != nil {
		return "a process that could not be looked for: " + err.Error()
	}
	defer orphan.Close(holders)
	var all []string
	for _, h := range holders {
		if h.Opened {
			all = append(all, orphan.Describe(h.PID))
		}
	}
	if len(all) == 0 {
		return "a process that cannot be seen from here"
	}
	return strings.Join(all, ", ")
}
