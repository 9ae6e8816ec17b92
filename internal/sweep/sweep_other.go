//go:build !linux

package sweep

import (
	"context"
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// Interfaces and flows of other systems are their plugins' business.
func containerLink(context.Context, Target) ([]Item, error) { return nil, nil }
func hostLinks(context.Context, Target) ([]Item, error)     { return nil, nil }
func shaper(context.Context, Target) ([]Item, error)        { return nil, nil }

func tuned(context.Context, Target) ([]Item, error) { return nil, nil }

// NotItsShaper knows of none off Linux.
func NotItsShaper(context.Context, Target) (bool, error) { return false, nil }

// Identify and what follows are not for other systems.
func Identify(context.Context, *netns.Handle, string) (*Device, error) {
	return nil, netns.ErrNotSupported
}
func IdentifyLent(_, _ *netns.Handle, _ string) (*Device, error) { return nil, netns.ErrNotSupported }
func (*Device) Restore(*netns.Handle, string, bool) (bool, error) {
	return false, netns.ErrNotSupported
}
func Settled(Target) (bool, error) { return false, netns.ErrNotSupported }

type sockets struct{}

func (*sockets) close() error { return nil }

// FlushFlows does nothing off Linux.
func FlushFlows(*netns.Handle, []netip.Addr, func() ([]netip.Addr, error)) (uint, error) {
	return 0, nil
}
