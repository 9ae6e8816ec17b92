package netfilter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/netns"
)

// Sockets are netlink sockets to packet filters that stay open between calls,
// and for a moment after the last. They save the change into the namespace, and
// above all the waiting: the kernel does not close such a socket before what was
// last deleted in the namespace is freed, which takes it about ten milliseconds,
// and until then no one else can change the rules. After that moment there is
// nothing to wait for.
//
// They are safe for concurrent use. The zero Sockets are ready for use; they need
// not be closed, as they close themselves. An open socket keeps its network
// namespace in existence.
type Sockets struct {
	mu     sync.Mutex
	idle   map[netns.ID][]idleSocket
	timer  *time.Timer // that runs if any is idle
	closed bool
}

type idleSocket struct {
	*socket
	since time.Time
}

const (
	// mostIdle is how many sockets of a namespace stay open: as many as there
	// are calls at the same time on a host that starts many containers. Each has
	// a buffer of 32 KiB.
	mostIdle = 16
	// linger is how long: several times what the kernel takes to free what was
	// deleted, on a machine that is busy.
	linger = 100 * time.Millisecond
)

// take returns the idle socket of the namespace that was used last, or nil.
func (s *Sockets) take(id netns.ID) *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.idle[id]
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	s.idle[id] = list[:len(list)-1]
	return last.socket
}

// give keeps the socket, or closes it.
func (s *Sockets) give(id netns.ID, sock *socket) error {
	if s.keep(id, sock) {
		return nil
	}
	return sock.close()
}

func (s *Sockets) keep(id netns.ID, sock *socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle[id]) >= mostIdle {
		return false
	}
	if s.idle == nil {
		s.idle = make(map[netns.ID][]idleSocket)
	}
	s.idle[id] = append(s.idle[id], idleSocket{sock, time.Now()})
	if s.timer == nil {
		s.timer = time.AfterFunc(linger, s.expire)
	}
	return true
}

// expire closes the sockets that were not used for a while.
func (s *Sockets) expire() {
	for _, old := range s.expired(time.Now().Add(-linger)) {
		// There is nothing that could be done about an error, and closing a
		// descriptor that is open has none.
		_ = old.close()
	}
}

// expired takes those out that were used last at that time or before.
func (s *Sockets) expired(before time.Time) (old []idleSocket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	for id, list := range s.idle {
		// They are in the order in which they were given back.
		n := slices.IndexFunc(list, func(i idleSocket) bool { return i.since.After(before) })
		if n < 0 {
			n = len(list)
		}
		old = append(old, list[:n]...)
		if list = slices.Clone(list[n:]); len(list) == 0 {
			delete(s.idle, id)
			continue
		}
		s.idle[id] = list
		if s.timer == nil {
			s.timer = time.AfterFunc(linger, s.expire)
		}
	}
	return old
}

// Close closes the sockets now. Those that are in use are closed after it.
func (s *Sockets) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, old := range s.expired(time.Now()) {
		errs = append(errs, old.close())
	}
	return errors.Join(errs...)
}

// doOnSocket runs fn on a thread in the namespace, like do, with a context in
// which one socket serves all that is asked and changed in turn.
func (fw *Firewalls) doOnSocket(ctx context.Context, fn func(context.Context) error) error {
	opened := false
	err := fw.onSocket(ctx, func(s *socket) error {
		opened = true
		return fw.do(func() error { return fn(context.WithValue(ctx, openKey{}, s)) })
	})
	if !opened && errors.Is(err, errNoNFTables) {
		return fw.do(func() error { return fn(ctx) }) // there may be rules elsewhere
	}
	return err
}

// onSocket runs fn with a socket in the namespace.
func (fw *Firewalls) onSocket(ctx context.Context, fn func(*socket) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	pool := socketsFrom(ctx)
	if fw.ns == nil {
		pool = nil // which namespace that is depends on the thread
	}
	var sock *socket
	if pool != nil {
		sock = pool.take(fw.ns.ID())
	}
	if sock == nil {
		if err := fw.do(func() (err error) {
			sock, err = openSocket()
			return err
		}); err != nil {
			return err
		}
	}
	err := fn(sock)
	if pool == nil {
		return errors.Join(err, sock.close())
	}
	// What a call that failed half way has left unread is told apart by its
	// sequence number.
	return errors.Join(err, pool.give(fw.ns.ID(), sock))
}
