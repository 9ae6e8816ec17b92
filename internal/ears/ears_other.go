//go:build !linux

package ears

import (
	"context"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
)

// Ears hear nothing off Linux.
type Ears struct{}

// Open fails with [hostns.ErrNotSupported].
func Open(*hostns.NetNS, guard.Class, int) (*Ears, error) { return nil, hostns.ErrNotSupported }

// All returns none.
func (*Ears) All() []guard.Ear { return nil }

// Interfaces returns none.
func (*Ears) Interfaces(context.Context) ([]guard.Link, error) { return nil, hostns.ErrNotSupported }

// Close does nothing.
func (*Ears) Close() error { return nil }

// Legacy are the legacy tables, which are not there.
type Legacy struct{ Host *hostns.NetNS }

// Used returns false.
func (*Legacy) Used() (bool, error) { return false, nil }

// Read hears nothing.
func (*Legacy) Read(func(guard.Event)) error { return nil }
