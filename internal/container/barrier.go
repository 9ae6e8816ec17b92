package container

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

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
