package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"
)

// errDraining ends waits of ADDs when the Server shuts down.
var errDraining = errors.New("the server is shutting down")

// tryLater is an error that tells a runtime to call again (code 11).
func tryLater(format string, args ...any) *types.Error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf(format, args...), "")
}

// gate lets a number of calls run at once, and a number wait. Adding has slots of its own:
// a DEL frees addresses, and must not wait for ADDs that wait for addresses.
type gate struct {
	adding, others chan struct{} // a token for each call that runs
	limit          int64
	waiting        atomic.Int64
	draining       <-chan struct{} // closed when ADDs are refused
}

func newGate(concurrent, queued int, draining <-chan struct{}) *gate {
	return &gate{
		adding: make(chan struct{}, concurrent), others: make(chan struct{}, concurrent),
		limit: int64(queued), draining: draining,
	}
}

// enter waits for ready, if there is one, and then for a slot. leave gives the slot back.
// See refusal for its errors.
func (g *gate) enter(ctx context.Context, add bool, ready func(context.Context) error) (leave func(), err error) {
	slots, draining := g.others, (<-chan struct{})(nil)
	if add {
		slots, draining = g.adding, g.draining
		select {
		case <-draining:
			return nil, errDraining
		default:
		}
	}
	leave = func() { <-slots }
	if ready == nil {
		select {
		case slots <- struct{}{}: // those that wait are served by leave, in their order
			return leave, nil
		default:
		}
	}
	if g.waiting.Add(1) > g.limit {
		g.waiting.Add(-1)
		return nil, tryLater("too many calls: %d are waiting", g.limit)
	}
	defer g.waiting.Add(-1)
	if ready != nil {
		if err := ready(ctx); err != nil {
			return nil, err
		}
	}
	select {
	case slots <- struct{}{}:
		return leave, nil
	case <-draining:
		return nil, errDraining
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// refusal is the answer to a call that never ran.
func refusal(err error) *types.Error {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		return said
	}
	return tryLater("not started: %v", err)
}

// budget bounds the bytes of the requests in hand.
type budget struct {
	mu   sync.Mutex
	left int64
}

// take reserves n bytes, and returns false if there are too few.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// running counts the calls that are being served.
type running struct {
	mu    sync.Mutex
	calls int
	idle  chan struct{} // closed when there is none, if somebody waits
}

// begin counts a call until end is called.
func (r *running) begin() (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls--; r.calls == 0 && r.idle != nil {
			close(r.idle)
			r.idle = nil
		}
	}
}

// wait returns 0 when no call is being served, or the number of calls that are when ctx
// ends.
func (r *running) wait(ctx context.Context) int {
	r.mu.Lock()
	if r.calls == 0 {
		r.mu.Unlock()
		return 0
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.calls
	}
}
