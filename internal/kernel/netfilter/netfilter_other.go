//go:build !linux

package netfilter

import (
	"context"
	"encoding/json"

	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace. Off Linux there
// are none.
type Firewalls struct{}

// Open returns Firewalls whose methods fail with [ErrNotSupported].
func Open(*netns.Handle, Options) *Firewalls { return &Firewalls{} }

// Missing fails with [ErrNotSupported].
func (*Firewalls) Missing(context.Context, ...Rule) ([]Missing, error) {
	return nil, ErrNotSupported
}

// Restore fails with [ErrNotSupported].
func (*Firewalls) Restore(context.Context, ...Rule) error {
	return ErrNotSupported
}

// Usable fails with [ErrNotSupported].
func (*Firewalls) Usable(context.Context) error { return ErrNotSupported }

// LeaveSubnets fails with [ErrNotSupported].
func (*Firewalls) LeaveSubnets(context.Context, Target) error { return ErrNotSupported }

// Find fails with [ErrNotSupported].
func Find(context.Context, *Firewalls, Target) (Plan, error) { return Plan{}, ErrNotSupported }

// HasShared returns true.
func HasShared(context.Context, *netns.Handle, Options, bool, json.RawMessage) (bool, error) {
	return true, nil
}
