package nft

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/thread"
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
	mu     sync.Mutex
	idle   map[netns.ID][]idleConn
	timer  *time.Timer // runs if any is idle
	closed bool        // none is kept
}

type idleConn struct {
	*Conn
	since time.Time
}

const (
	// mostIdle is how many sockets of a namespace stay open: as many as a host
	// that starts or stops all its containers has concurrent calls. Each has a buffer
	// of 32 KiB.
	mostIdle = 128
	// linger is several times as long as a busy machine takes to free deleted rules.
	linger = 100 * time.Millisecond
)

// Do runs fn with a Conn in the namespace; nil means the calling thread's.
func (p *Pool) Do(ns *netns.Handle, fn func(*Conn) error) error {
	if p == nil {
		p = &Pool{closed: true}
	}
	if ns == nil {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	id, err := idOf(ns)
	if err != nil {
		return err
	}
	c := p.take(id)
	if c == nil {
		if err := In(ns, func() (err error) {
			c, err = Open()
			return err
		}); err != nil {
			return err
		}
	}
	// Answers that a failed call leaves unread have other sequence numbers.
	err = fn(c)
	if !p.keep(id, c) {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Sockets opens sockets in one network namespace.
type Sockets struct {
	Pool *Pool
	NS   *netns.Handle // nil: that of the calling thread
}

// Do runs fn with a Conn, unless the context has ended.
func (s Sockets) Do(ctx context.Context, fn func(*Conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.Pool.Do(s.NS, fn)
}

func idOf(ns *netns.Handle) (netns.ID, error) {
	if ns == nil {
		return netns.CurrentID()
	}
	return ns.ID(), nil
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
func (p *Pool) take(id netns.ID) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[id]
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	p.idle[id] = list[:len(list)-1]
	return last.Conn
}

// keep takes the socket back, unless enough of the namespace are idle.
func (p *Pool) keep(id netns.ID, c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[id]) >= mostIdle {
		return false
	}
	if p.idle == nil {
		p.idle = make(map[netns.ID][]idleConn)
	}
	p.idle[id] = append(p.idle[id], idleConn{c, time.Now()})
	if p.timer == nil {
		p.timer = time.AfterFunc(linger, p.expire)
	}
	return true
}

// expire closes sockets that have been idle for a while.
func (p *Pool) expire() {
	for _, old := range p.expired(time.Now().Add(-linger)) {
		// Closing an open descriptor does not fail, and nothing could be done.
		_ = old.Close()
	}
}

// expired removes and returns the sockets of the namespaces in which none was used after
// that time.
func (p *Pool) expired(before time.Time) (old []idleConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	for id, list := range p.idle {
		// They are in the order in which they were given back.
		if n := len(list); n == 0 || !list[n-1].since.After(before) {
			old = append(old, list...)
			delete(p.idle, id)
		} else if p.timer == nil {
			p.timer = time.AfterFunc(linger, p.expire)
		}
	}
	return old
}
