package container

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
)

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
func (s *Store) LockBarrier(ctx context.Context) (held *lock.Held, err error) {
	err = whileWaiting(ctx, func(ctx context.Context) (err error) {
		held, err = s.queueForBarrier(ctx)
		return err
	}, func(int) error {
		if err := s.endOrphansAtBarrier(); err != nil {
			s.Logger.Warn("look for plugins that a dead runtime has left running", "error", err)
		}
		return nil
	})
	return held, err
}

func (s *Store) queueForBarrier(ctx context.Context) (*lock.Held, error) {
	for stand := shortestStand; ; stand = min(2*stand, longestStand) {
		standing, cancel := context.WithTimeout(ctx, stand)
		held, err := s.Locks.LockAll(standing, []lock.Key{{Name: Barrier}})
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return held, err
		}
		if held, err = s.stepAside(ctx, asideFor*stand); held != nil || err != nil {
			return held, err
		}
	}
}

// stepAside lets others pass for a time. It takes the barrier if it becomes free
// meanwhile, and otherwise returns nil.
func (s *Store) stepAside(ctx context.Context, long time.Duration) (*lock.Held, error) {
	over := time.NewTimer(long)
	defer over.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if held, err := s.Locks.TryLockAll([]lock.Key{{Name: Barrier}}); held != nil || err != nil {
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

// endOrphansAtBarrier kills the plugins that a dead runtime has left running and
// that have the barrier. They have the lock of their container too, on the same
// description.
func (s *Store) endOrphansAtBarrier() error {
	holders, err := orphan.Holders(s.Locks.Path(), lock.Byte(Barrier))
	if err != nil {
		return err
	}
	defer orphan.Close(holders)
	found, err := s.Records.List()
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
			if _, err := s.endOrphans(id, offset, rec); !errors.Is(err, ErrBusy) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
