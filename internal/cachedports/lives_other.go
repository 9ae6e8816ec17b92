//go:build !linux

package cachedports

import "github.com/embedcni/cni/internal/hostns"

// livesOn returns false.
func (Attachment) livesOn(*hostns.NetNS) (bool, error) { return false, nil }
