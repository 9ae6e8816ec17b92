package server

import (
	"context"
	"io"
	"sync"
)

// budget bounds the bytes of the requests in hand. Requests are small, but for a GC's: those
// with more than smallRequest bytes leave at least half of what is free to the others.
type budget struct {
	mu   sync.Mutex
	pool pool
}

// smallRequest is the size in bytes that a request for one container does not exceed.
const smallRequest = 64 << 10

// beyond is the kind of the bytes of a request beyond smallRequest.
func beyond() kind { return kind{name: "large", share: 1} }

// change takes the bytes by which a request has grown, or gives those back by which it is
// shorter. It returns false if there is no room.
func (b *budget) change(from, to int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	small := min(to, smallRequest) - min(from, smallRequest)
	large := max(to-smallRequest, 0) - max(from-smallRequest, 0)
	if to < from {
		b.pool.give(-small)
		b.pool.give(-large, beyond())
		return true
	}
	if !b.pool.fits(small) || large > 0 && !b.pool.fits(large, beyond()) {
		return false
	}
	b.pool.take(small)
	b.pool.take(large, beyond())
	return true
}

// intake reads a request. Its bytes are accounted as they come: a client that announces many
// holds no room by that.
type intake struct {
	from   io.Reader
	budget *budget
	size   int64
}

// Read reads what there is room for.
func (i *intake) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if !i.budget.change(i.size, i.size+int64(n)) {
		return 0, refusal(tryLater("too many requests: no room for more than %d bytes of this one", i.size))
	}
	i.size += int64(n)
	return n, err
}

// release gives the room back.
func (i *intake) release() { i.budget.change(i.size, 0) }

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
