//go:build !linux

package cni

import (
	"context"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
)

// startLoopback is start: off Linux nobody looks into a container.
func (a *attachment) startLoopback(ctx context.Context, call chain.Call, p provider) (invoke.Output, error) {
	return a.start(ctx, call, p)
}
