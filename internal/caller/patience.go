package caller

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Patience is the time that plugins may wait, all together, for work that the kernel does
// by itself, such as the detection of duplicate addresses. It is safe for concurrent use.
// A nil Patience has no end.
type Patience struct {
	mu   sync.Mutex
	left time.Duration
}

// NewPatience returns a Patience of that length.
func NewPatience(d time.Duration) *Patience { return &Patience{left: d} }

// ErrEnough means that a Patience has ended.
var ErrEnough = errors.New("it has taken long enough")

// Wait begins to wait, until stop is called. The context ends with the patience; then its
// cause is ErrEnough.
func (p *Patience) Wait(ctx context.Context) (_ context.Context, stop func()) {
	if p == nil {
		return ctx, func() {}
	}
	p.mu.Lock()
	left := p.left
	p.mu.Unlock()
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrEnough)
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.left = max(p.left-time.Since(begun), 0)
	}
}
