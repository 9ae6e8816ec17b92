//go:build !linux

package sweep

import (
	"context"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// Interfaces and flows of other systems are their plugins' business.
func (*search) containerLink(context.Context) ([]Item, error) { return nil, nil }
func (*search) hostEnds(context.Context) ([]Item, error)      { return nil, nil }
func (*search) shaper(context.Context) ([]Item, error)        { return nil, nil }
func (*search) tuned(context.Context) ([]Item, error)         { return nil, nil }

// NotItsShaper knows of none off Linux.
func NotItsShaper(Target) (bool, error) { return false, nil }

// Identify and the following functions need Linux.
func Identify(*links.Conns, *netns.Handle, string) (*footprint.Device, error) {
	return nil, netns.ErrNotSupported
}
func IdentifyLent(_, _ *netns.Handle, _ string) (*footprint.Device, error) {
	return nil, netns.ErrNotSupported
}
func Restore(*footprint.Device, *netns.Handle, string, bool) (bool, error) {
	return false, netns.ErrNotSupported
}
func Settled(Target) (bool, error) { return false, netns.ErrNotSupported }

// FlushFlows does nothing off Linux.
func FlushFlows(Target) (uint, error) { return 0, nil }
