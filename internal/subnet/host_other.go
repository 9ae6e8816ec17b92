//go:build !linux

package subnet

import (
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// InUse fails with [netns.ErrNotSupported].
func InUse(*netns.Handle) ([]netip.Prefix, error) { return nil, netns.ErrNotSupported }

// OfLink fails with [netns.ErrNotSupported].
func OfLink(*netns.Handle, string) ([]netip.Prefix, error) { return nil, netns.ErrNotSupported }
