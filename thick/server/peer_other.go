//go:build !linux

package server

import (
	"errors"
	"fmt"
	"net"
)

// peerOf knows no credentials here.
func peerOf(net.Conn) (peer, error) {
	return peer{uid: -1}, fmt.Errorf("credentials of a client: %w", errors.ErrUnsupported)
}

// isDescendant knows no processes here.
func isDescendant(int) bool { return false }

// Listen needs Linux.
func (s *Server) Listen(string) (net.Listener, error) {
	return nil, fmt.Errorf("server: listen: %w", errors.ErrUnsupported)
}
