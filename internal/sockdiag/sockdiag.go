// Package sockdiag lists the sockets of a network namespace that wait for packets of
// any peer, and finds the processes that have them, as ss(8) does.
package sockdiag

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/ports"
)

// ErrUnknown means that the kernel cannot list sockets, or not those of a protocol.
var ErrUnknown = fmt.Errorf("sockets cannot be listed: %w", errors.ErrUnsupported)

// Socket is a socket that receives packets of any peer: one of TCP or SCTP that
// listens, or one of UDP that is not connected.
type Socket struct {
	ports.Claim // its address; the zero Addr: all of both families
	Inode       uint32
}

// Process is a process that has a socket.
type Process struct {
	PID  int
	Name string // as in /proc/PID/comm: at most 15 bytes; empty if it has ended
}
