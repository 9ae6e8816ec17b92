package nft

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// Pool keeps sockets open between calls, and for a moment after the last in the
// namespace. That saves a change into the namespace and, above all, a wait: the kernel
// closes such a socket only after it has freed the last deleted objects of the
// namespace, which takes about ten milliseconds, and until then no one else can
// change rules, or delete interfaces. After that moment, closing does not wait.
//
// It is safe for concurrent use. The zero Pool is ready for use. A nil Pool closes each
// socket after its use. An open socket keeps its network namespace in existence.
type Pool struct {
	mu   sync.Mutex
	idle map[netns.ID]*idle
}

// idle are the sockets of a namespace that are not in use, of which there were some lately.
type idle struct {
	conns []*Conn
	timer *time.Timer // ends a while after the last use of one
}

const (
	// mostIdle is how many sockets of a namespace stay open: as many as a host
	// that starts or stops all its containers has concurrent calls. Each has a buffer
	// of 32 KiB.
	mostIdle = 128
	// linger is several times as long as a busy machine takes to free deleted rules.
	linger = 100 * time.Millisecond
)

// Sockets opens sockets in one network namespace.
type Sockets struct {
	Pool *Pool
	NS   *netns.Handle // nil: that of the calling thread
}

// Do runs fn with a Conn, unless the context has ended.
func (s Sockets) Do(ctx context.Context, fn func(*Conn) error) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var id netns.ID
	if s.NS != nil {
		id = s.NS.ID()
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if id, err = netns.CurrentID(); err != nil {
			return err
		}
	}
	c := s.Pool.take(id)
	if c == nil {
		if err := In(s.NS, func() (err error) {
			c, err = Open()
			return err
		}); err != nil {
			return err
		}
	}
	// Answers that a failed call leaves unread have other sequence numbers.
	err = fn(c)
	if !s.Pool.keep(id, c) {
		err = joined.Errors(err, c.Close())
	}
	return err
}

// In runs fn on a thread in the namespace; nil means the calling thread's.
func In(ns *netns.Handle, fn func() error) error {
	if ns != nil {
		return thread.In(ns, fn)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return fn()
}

// take returns the namespace's most recently used idle socket, or nil.
func (p *Pool) take(id netns.ID) (c *Conn) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.idle[id]; in != nil && len(in.conns) > 0 {
		last := len(in.conns) - 1
		c, in.conns = in.conns[last], in.conns[:last]
	}
	return c
}

// keep takes the socket back, unless enough of the namespace are idle.
func (p *Pool) keep(id netns.ID, c *Conn) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.idle[id]
	switch {
	case in == nil:
		in = &idle{timer: time.AfterFunc(linger, func() { p.expire(id) })}
		if p.idle == nil {
			p.idle = make(map[netns.ID]*idle)
		}
		p.idle[id] = in
	case len(in.conns) >= mostIdle:
		return false
	}
	in.timer.Reset(linger)
	in.conns = append(in.conns, c)
	return true
}

// expire closes the sockets of a namespace in which none was used for a while.
func (p *Pool) expire(id netns.ID) {
	p.mu.Lock()
	in := p.idle[id]
	delete(p.idle, id)
	p.mu.Unlock()
	if in == nil {
		return // its timer had ended already when it was set again
	}
	in.timer.Stop()
	for _, old := range in.conns {
		// Closing an open descriptor does not fail, and nothing could be done.
		_ = old.Close()
	}
}
