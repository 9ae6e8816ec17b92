//go:build !linux

package netconf

import (
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// subnetsInUse fails with [netns.ErrNotSupported].
func subnetsInUse(*netns.Handle, string) (all, bridged []netip.Prefix, err error) {
	return nil, nil, netns.ErrNotSupported
}
