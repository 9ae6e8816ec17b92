//go:build !linux

package portindex

import "github.com/embedcni/cni/internal/hostns"

// livesOn returns false.
func (Cached) livesOn(*hostns.NetNS) (bool, error) { return false, nil }
