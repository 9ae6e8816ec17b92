package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
)

// orphanGrace is how long plugins of a dead runtime may go on. What a plugin
// finishes by itself is tidier than what it is killed in.
const orphanGrace = 2 * time.Second

// waiting is how a call waits for a container that another call has locked.
type waiting int

const (
	patient waiting = iota // for as long as the context allows; it ends orphans
	hurried                // not for a process that lives
	looking                // it only reads, and so ends nothing
)

type waitingKey struct{}

func withWaiting(ctx context.Context, w waiting) context.Context {
	return context.WithValue(ctx, waitingKey{}, w)
}

// lockEnding is lock for a call that is to change the container. If it has to
// wait for plugins that a dead runtime has left running, it kills them after
// orphanGrace.
func (op *operation) lockEnding(ctx context.Context) error {
	how, _ := ctx.Value(waitingKey{}).(waiting)
	if how == looking {
		return op.lock(ctx)
	}
	return whileWaiting(ctx, op.lock, func(look int) error {
		rec, _ := op.records.Load(op.id) // of one that is damaged, what there is of it
		ended, err := op.endOrphans(op.id, lock.Byte(op.key()), rec)
		if err == nil && len(ended) > 0 && look == mostLooks {
			err = fmt.Errorf("%w: killed processes %v, which have not ended", ErrBusy, ended)
		}
		if how != hurried || !errors.Is(err, ErrBusy) {
			return nil
		}
		return err
	})
}

// mostLooks is how often a call in a hurry looks after orphans that it has killed.
const mostLooks = 3

// whileWaiting runs wait. When that takes longer than orphanGrace it runs look,
// and again after a while that doubles, and cancels wait with an error that look
// returns. look is over when whileWaiting returns, so that it never meets what
// the caller starts then.
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

// endOrphans kills the processes that keep a container locked though the
// runtime that locked it is dead, and returns their numbers. It is ErrBusy if
// somebody has it locked who is not known to be one of them.
//
// A runtime that lives is known by its mark (see package lock); one of an
// earlier version by the record, or else because the descriptor by which it has
// the lock is one that it opened. rec is nil if nothing is on record: a DEL of
// what go-cni attached writes no record.
func (s *snapshot) endOrphans(id record.ID, offset int64, rec *record.Record) (ended []int, err error) {
	state, err := s.locks.State(offset)
	if err != nil || state == lock.Free {
		return nil, err
	}
	alive := state == lock.Kept
	if !alive && rec != nil && (rec.Runtime != "" || rec.Life != "") {
		if alive, err = s.runtimeAlive(rec); err != nil {
			return nil, err
		}
	}
	if alive {
		return nil, fmt.Errorf("%w in %s", ErrBusy, s.holder(offset))
	}
	holders, err := orphan.Holders(s.locks.Path(), offset)
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
	// They may have ended while they were looked for, and another call begun.
	if state, err = s.locks.State(offset); err != nil || state != lock.Inherited {
		return nil, err
	}
	return s.end(id, holders)
}

func (s *snapshot) end(id record.ID, holders []*orphan.Holder) (ended []int, err error) {
	var errs []error
	for _, h := range holders {
		killed, err := h.Kill()
		errs = append(errs, err)
		if killed {
			ended = append(ended, h.PID)
		}
	}
	err = join(errs...)
	if len(ended) > 0 || err != nil {
		s.logger.Warn("killed plugins of a dead runtime", "container", id, "processes", ended, "error", err)
	}
	return ended, err
}

// holder describes who has the byte locked by a descriptor of its own.
func (s *snapshot) holder(offset int64) string {
	holders, err := orphan.Holders(s.locks.Path(), offset)
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
