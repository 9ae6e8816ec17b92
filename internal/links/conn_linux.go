package links

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Conn is a route netlink socket in a namespace. It reuses one small buffer,
// keeps no lists that grow with the namespace, and puts the kernel's own words
// into its errors. Only one goroutine may use it at a time. The caller that
// opened it closes it.
type Conn struct {
	socket
	home *Conns   // owner, if it is borrowed
	ns   netns.ID // its namespace in that case
}

// Dial opens a socket in a namespace. It sets the sysctls in the same visit,
// because both need a thread inside.
func Dial(ns *netns.Handle, sysctls ...Sysctl) (c *Conn, err error) {
	err = thread.In(ns, func() (err error) {
		if c, err = dial(); err != nil {
			return err
		}
		missing, err := unset(c, sysctls)
		if err == nil {
			err = writeSysctls(missing)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return c, nil
}

// dial opens a socket in the namespace of the calling thread.
func dial() (*Conn, error) {
	s, err := openSocket(make([]byte, bufferSize))
	if err != nil {
		return nil, err
	}
	return &Conn{socket: s}, nil
}

// Dialer opens a socket in one namespace after the other, on one thread. Its
// sockets share a buffer: close one before the next is opened.
type Dialer struct {
	tour *thread.Tour
	buf  []byte
}

// NewDialer returns a Dialer for use on a tour.
func NewDialer(tour *thread.Tour) *Dialer {
	return &Dialer{tour, make([]byte, bufferSize)}
}

// Dial opens a socket in a namespace.
func (d *Dialer) Dial(ns *netns.Handle) (c *Conn, err error) {
	err = d.tour.In(ns, func() error {
		s, err := openSocket(d.buf)
		if err == nil {
			c = &Conn{socket: s}
		}
		return err
	})
	if err == nil {
		return c, nil
	}
	if c != nil { // the thread cannot return from the namespace
		err = errors.Join(err, c.Close())
	}
	return nil, fmt.Errorf("in namespace %s: %w", ns.ID(), err)
}

// Close closes the socket or gives it back. Further calls do nothing.
func (c *Conn) Close() error {
	if c.fd < 0 || c.home != nil && c.home.give(c) {
		return nil
	}
	return c.close()
}
