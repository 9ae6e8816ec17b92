//go:build !linux

package netconf

import (
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// subnetsInUse fails with [netns.ErrNotSupported].
func subnetsInUse(*netns.Handle) ([]netip.Prefix, error) { return nil, netns.ErrNotSupported }

// subnetsOfLink fails with [netns.ErrNotSupported].
func subnetsOfLink(*netns.Handle, string) ([]netip.Prefix, error) { return nil, netns.ErrNotSupported }
