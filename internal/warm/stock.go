package warm

import (
	"context"
	"sync"
	"time"
)

// Stock holds things that a goroutine makes ahead of time, up to a number. It is safe
// for concurrent use.
type Stock[T any] struct {
	ready  chan T
	room   chan struct{} // holds one for each thing that is ready, being made, or taken
	stop   context.CancelFunc
	making sync.WaitGroup
}

// Fill begins to make things, one after the other while there is room, until Stop. If
// makeOne fails, it is called again after a time that grows with each failure.
func Fill[T any](size int, makeOne func(context.Context) (T, error)) *Stock[T] {
	s := &Stock[T]{ready: make(chan T, size), room: make(chan struct{}, size)}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.making.Add(1)
	go func() {
		defer s.making.Done()
		s.fill(ctx, makeOne)
	}()
	return s
}

func (s *Stock[T]) fill(ctx context.Context, makeOne func(context.Context) (T, error)) {
	for failures := 0; ; {
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		one, err := makeOne(ctx)
		if err == nil {
			failures = 0
			s.ready <- one
			continue
		}
		<-s.room
		failures++
		select {
		case <-time.After(pause(failures)):
		case <-ctx.Done():
			return
		}
	}
}

// pause returns the time to wait after so many failures in a row.
func pause(failures int) time.Duration {
	return min(100*time.Millisecond<<min(failures-1, 10), 10*time.Second)
}

// Take returns a thing that is ready, and reports whether there is one. It keeps its
// room until it comes back by Return, or Drop gives the room up.
func (s *Stock[T]) Take() (one T, ok bool) {
	select {
	case one = <-s.ready:
		return one, true
	default:
		return one, false
	}
}

// Return puts a thing back that was taken.
func (s *Stock[T]) Return(one T) { s.ready <- one }

// Drop makes room for another thing than one that was taken.
func (s *Stock[T]) Drop() { <-s.room }

// Len returns the number of things that are ready.
func (s *Stock[T]) Len() int { return len(s.ready) }

// Stop ends the making, and waits for it. What is ready can still be taken.
func (s *Stock[T]) Stop() {
	s.stop()
	s.making.Wait()
}
