//go:build !linux

package observed

import (
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/netns"
)

// Read returns [hostns.ErrNotSupported]: off Linux there are no network namespaces.
func Read(*netns.Handle) (map[string]Interface, error) { return nil, hostns.ErrNotSupported }
