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
	shared    int
	exclusive bool
	waiting   []*waiter
}

type waiter struct {
	shared bool
	ready  chan struct{} // closed under queue.mu when the key has been handed over
}

// acquire takes one key, or returns an error when ctx ends first.
func (q *queue) acquire(ctx context.Context, c claim) error {
	w := q.join(c)
	if w == nil {
		return nil
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		q.leave(c, w)
		return fmt.Errorf("lock %q: held in this process: %w", c.name, ended(ctx))
	}
}

// join takes the key if it is free, and otherwise returns a place in the line.
func (q *queue) join(c claim) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.take(c) {
		return nil
	}
	l, w := q.lines[c.offset], &waiter{shared: c.shared, ready: make(chan struct{})}
	l.waiting = append(l.waiting, w)
	return w
}

// try takes the key if it is free, and reports whether it did.
func (q *queue) try(c claim) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take(c)
}

// take is try under q.mu. A shared claim also waits behind any waiting claim: a
// stream of shared claims would otherwise starve an exclusive one.
func (q *queue) take(c claim) bool {
	l := q.lines[c.offset]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[int64]*line)
		}
		l = &line{}
		q.lines[c.offset] = l
	}
	free := len(l.waiting) == 0 && l.admits(c.shared)
	if free {
		l.enter(c.shared)
	}
	return free
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

// advance hands the key to the callers that can have it now, and forgets the
// line if nobody wants the key.
func (q *queue) advance(offset int64, l *line) {
	for len(l.waiting) > 0 && l.admits(l.waiting[0].shared) {
		w := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		l.enter(w.shared)
		close(w.ready)
	}
	if l.shared == 0 && !l.exclusive && len(l.waiting) == 0 {
		delete(q.lines, offset)
	}
}

func (l *line) admits(shared bool) bool {
	return !l.exclusive && (shared || l.shared == 0)
}

func (l *line) enter(shared bool) {
	if shared {
		l.shared++
	} else {
		l.exclusive = true
	}
}

func (l *line) exit(shared bool) {
	if shared {
		l.shared--
	} else {
		l.exclusive = false
	}
}
