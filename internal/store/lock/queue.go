package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// queue excludes the goroutines of this process from each other. It stands in
// front of the file, so that a key which is busy in this process costs neither a
// thread nor a file descriptor.
type queue struct {
	mu sync.Mutex
	// lines has a line for each key in use, first come, first served: one caller that has the
	// key exclusively, or some that share it, and behind these the callers that wait. So
	// memory grows with the callers, not with all names ever used.
	lines map[int64][]*caller
}

// caller has a place in the line of a key.
type caller struct {
	shared, has bool
	ready       chan struct{} // closed under queue.mu when it has the key
}

// acquire takes one key, or returns an error when ctx ends first.
func (q *queue) acquire(ctx context.Context, c claim) error {
	w := q.join(c, true)
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		q.giveUp(c, w)
		return fmt.Errorf("lock %q: held in this process: %w", c.name, ended(ctx))
	}
}

// giveUp takes a caller that waits no longer out of the line. It may have the key by now, and
// another that shares the key may have left in its place.
func (q *queue) giveUp(c claim, w *caller) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leave(c, max(slices.Index(q.lines[c.offset], w), 0))
}

// try takes the key if it is free, and reports whether it did.
func (q *queue) try(c claim) bool { return q.join(c, false) != nil }

// join takes a place in the line, and the key if it is free. Without wait it returns nil if
// the key is not. A shared claim also waits behind any waiting claim: a stream of shared
// claims would otherwise starve an exclusive one.
func (q *queue) join(c claim, wait bool) *caller {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &caller{shared: c.shared, ready: make(chan struct{})}
	line := append(q.lines[c.offset], w)
	q.advance(c.offset, line)
	if !w.has && !wait {
		q.leave(c, len(line)-1)
		return nil
	}
	return w
}

// leave takes a caller out of the line. Of several that share the key it does not matter which.
func (q *queue) leave(c claim, at int) {
	q.advance(c.offset, slices.Delete(q.lines[c.offset], at, at+1))
}

// releaseAll gives keys back, the last one taken first.
func (q *queue) releaseAll(claims []claim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range slices.Backward(claims) {
		q.leave(c, 0)
	}
}

// advance hands the key to the callers that can have it now, and forgets the
// line if nobody wants the key.
func (q *queue) advance(offset int64, line []*caller) {
	for i, w := range line {
		if i > 0 && !(w.shared && line[0].shared) {
			break
		}
		if !w.has {
			w.has = true
			close(w.ready)
		}
	}
	if q.lines == nil {
		q.lines = make(map[int64][]*caller)
	}
	if q.lines[offset] = line; len(line) == 0 {
		delete(q.lines, offset)
	}
}
