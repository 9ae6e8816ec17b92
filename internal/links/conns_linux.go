package links

import (
	"errors"
	"fmt"
	"sync"

	"github.com/embedcni/cni/netns"
)

// Conns are sockets that stay open between the plugins of one attachment. Most
// of the plugins need the same two, and opening one takes longer than the
// requests that follow, because a thread must enter the namespace.
//
// They are safe for concurrent use, and the zero Conns are ready for use. An
// open socket keeps its namespace in existence.
type Conns struct {
	mu      sync.Mutex
	idle    map[netns.ID][]*Conn
	sending []chan struct{} // closed when an announcement has begun
	closed  bool
}

// Borrow is [Dial], but reuses an idle socket, and Close gives it back. A nil
// *Conns has none, and Close closes the socket.
func (all *Conns) Borrow(ns *netns.Handle, sysctls ...Sysctl) (*Conn, error) {
	if all == nil {
		return Dial(ns, sysctls...)
	}
	c := all.take(ns.ID())
	if c == nil {
		c, err := Dial(ns, sysctls...)
		if err == nil {
			c.home, c.ns = all, ns.ID()
		}
		return c, err
	}
	if err := setSysctls(c, ns, sysctls...); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Lookup returns the interface of that name in a namespace, or nil if there is
// none.
func (all *Conns) Lookup(ns *netns.Handle, name string) (*Link, error) {
	c, err := all.Borrow(ns)
	if err != nil {
		return nil, err
	}
	l, err := c.Link(name)
	if NotFound(err) {
		return nil, c.Close()
	}
	if err != nil {
		err = fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return &l, errors.Join(err, c.Close())
}

// Links lists the interfaces of a namespace, like [Conn.Links].
func (all *Conns) Links(ns *netns.Handle) ([]Link, error) {
	c, err := all.Borrow(ns)
	if err != nil {
		return nil, err
	}
	found, err := c.Links()
	return found, errors.Join(err, c.Close())
}

func (all *Conns) take(ns netns.ID) *Conn {
	all.mu.Lock()
	defer all.mu.Unlock()
	if list := all.idle[ns]; len(list) > 0 {
		all.idle[ns] = list[:len(list)-1]
		return list[len(list)-1]
	}
	return nil
}

// give takes the socket back, unless all are closed. Unread answers of a failed
// exchange have other sequence numbers; but an unfinished list would block the
// next one.
func (all *Conns) give(c *Conn) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed || c.broken {
		return false
	}
	if all.idle == nil {
		all.idle = make(map[netns.ID][]*Conn)
	}
	kept := *c
	c.fd = -1
	all.idle[c.ns] = append(all.idle[c.ns], &kept)
	return true
}

// expect makes Close wait until sending is closed, unless Close was called
// before.
func (all *Conns) expect(sending chan struct{}) bool {
	if all == nil {
		return false
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if !all.closed {
		all.sending = append(all.sending, sending)
	}
	return !all.closed
}

// Close closes the idle sockets. The users of the others close those.
func (all *Conns) Close() error {
	all.mu.Lock()
	idle, sending := all.idle, all.sending
	all.idle, all.sending, all.closed = nil, nil, true
	all.mu.Unlock()
	for _, begun := range sending {
		<-begun
	}
	var errs []error
	for ns, list := range idle {
		for _, c := range list {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("in namespace %s: %w", ns, err))
			}
		}
	}
	return errors.Join(errs...)
}
