//go:build !linux

package runner

import "github.com/embedcni/cni/internal/run/chain"

// sees returns nil: there are no plugin roots.
func (r *Runner) sees(chain.Call) error { return nil }
