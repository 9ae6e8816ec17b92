//go:build !linux

package sockdiag

import "github.com/embedcni/cni/netns"

// Bound returns ErrUnknown.
func Bound(*netns.Handle, string, uint16, uint16) ([]Socket, error) { return nil, ErrUnknown }

// Own returns ErrUnknown.
func Own() (map[uint32]bool, error) { return nil, ErrUnknown }

// Holders finds nothing.
func Holders(map[uint32]bool) map[uint32]Process { return nil }

// Ephemeral returns ErrUnknown.
func Ephemeral(*netns.Handle) (first, last uint16, err error) { return 0, 0, ErrUnknown }

// LocalPorts returns ErrUnknown.
func LocalPorts(*netns.Handle) (Local, error) { return Local{}, ErrUnknown }
