//go:build !linux

package hostwatch

import (
	"context"

	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
)

// A Watcher watches nothing off Linux.
type Watcher struct{}

// Open fails with [hostns.ErrNotSupported].
func Open(*hostns.NetNS, guard.Class, int) (*Watcher, error) { return nil, hostns.ErrNotSupported }

// All returns none.
func (*Watcher) All() []guard.Source { return nil }

// Interfaces returns none.
func (*Watcher) Interfaces(context.Context) ([]guard.Link, []guard.Port, error) {
	return nil, nil, hostns.ErrNotSupported
}

// Close does nothing.
func (*Watcher) Close() error { return nil }

// Legacy are the legacy tables, which are not there.
type Legacy struct{ Host *hostns.NetNS }

// Used returns false.
func (*Legacy) Used() (bool, error) { return false, nil }

// Read reports nothing.
func (*Legacy) Read(func(guard.Event)) error { return nil }
