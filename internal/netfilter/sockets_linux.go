package netfilter

import (
	"context"
	"errors"
	"sync"

	"github.com/embedcni/cni/netns"
)

// Sockets are netlink sockets to packet filters that stay open between calls.
// They save the change into the namespace, and above all the closing: the
// kernel does not close such a socket before what was last deleted in the
// namespace is freed, which takes it about ten milliseconds, and until then no
// one else can change the rules. They are safe for concurrent use. The zero
// Sockets are ready for use, and are to be closed.
//
// A socket keeps its network namespace in existence.
type Sockets struct {
	mu     sync.Mutex
	idle   map[netns.ID][]*socket
	closed bool
}

// mostIdle is how many sockets of a namespace stay open: as many as there are
// calls at the same time on a host that starts many containers. Each has a
// buffer of 32 KiB.
const mostIdle = 16

// take returns an idle socket of the namespace, or nil.
func (s *Sockets) take(id netns.ID) *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.idle[id]
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	s.idle[id] = list[:len(list)-1]
	return last
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
		s.idle = make(map[netns.ID][]*socket)
	}
	s.idle[id] = append(s.idle[id], sock)
	return true
}

// Close closes the sockets. Those that are in use are closed after it.
func (s *Sockets) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, list := range s.idle {
		for _, sock := range list {
			errs = append(errs, sock.close())
		}
	}
	s.idle = nil
	return errors.Join(errs...)
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
