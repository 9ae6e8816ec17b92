//go:build !linux

package firewalld

import (
	"context"
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// Conn is a connection to a bus. There is none off Linux.
type Conn struct{}

// Do returns ErrNotRunning.
func (b *Bus) Do(context.Context, *netns.Handle, func(*Conn) error) error { return ErrNotRunning }

// Has returns ErrNotRunning.
func (c *Conn) Has(string, netip.Addr) (bool, error) { return false, ErrNotRunning }

// Remove does nothing.
func (c *Conn) Remove(string, netip.Addr) error { return nil }

// Absent is true.
func Absent(error) bool { return true }
