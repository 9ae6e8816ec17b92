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
	mu    sync.Mutex
	lines map[int64]*line // only keys in use: memory grows with the holders, not with all names ever used
}

// line holds the holders of one key and its waiting callers, first come, first
// served.
type line struct {
	holders int // shared ones; negative: an exclusive one
	waiting []*waiter
}

type waiter struct {
	shared bool
	ready  chan struct{} // closed under queue.mu when the key has been handed over
}

// acquire takes one key, or returns an error when ctx ends first.
func (q *queue) acquire(ctx context.Context, c claim) error {
	w := q.join(c, true)
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		q.leave(c, w)
		return fmt.Errorf("lock %q: held in this process: %w", c.name, ended(ctx))
	}
}

// try takes the key if it is free, and reports whether it did.
func (q *queue) try(c claim) bool { return q.join(c, false) != nil }

// join takes a place in the line, and the key if it is free. Without wait it returns nil if
// the key is not. A shared claim also waits behind any waiting claim: a stream of shared
// claims would otherwise starve an exclusive one.
func (q *queue) join(c claim, wait bool) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[c.offset]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[int64]*line)
		}
		l = &line{}
		q.lines[c.offset] = l
	}
	w := &waiter{shared: c.shared, ready: make(chan struct{})}
	l.waiting = append(l.waiting, w)
	q.advance(c.offset, l)
	if !wait && slices.Contains(l.waiting, w) {
		l.waiting = l.waiting[:len(l.waiting)-1]
		return nil
	}
	return w
}

// leave gives up a place in the line, or the key if it was handed over at that
// moment.
func (q *queue) leave(c claim, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[c.offset]
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	} else {
		l.exit(w.shared)
	}
	q.advance(c.offset, l)
}

// releaseAll gives keys back, the last one taken first.
func (q *queue) releaseAll(claims []claim) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range slices.Backward(claims) {
		l := q.lines[c.offset]
		l.exit(c.shared)
		q.advance(c.offset, l)
	}
}

func (l *line) exit(shared bool) {
	if shared {
		l.holders--
	} else {
		l.holders = 0
	}
}

// advance hands the key to the callers that can have it now, and forgets the
// line if nobody wants the key.
func (q *queue) advance(offset int64, l *line) {
	for len(l.waiting) > 0 {
		w := l.waiting[0]
		switch {
		case l.holders == 0 && !w.shared:
			l.holders = -1
		case l.holders >= 0 && w.shared:
			l.holders++
		default:
			return
		}
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(w.ready)
	}
	if l.holders == 0 {
		delete(q.lines, offset)
	}
}
