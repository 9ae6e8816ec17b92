//go:build !linux

package cni

import "context"

// share does nothing: there are no sockets to share.
func (*operation) share(ctx context.Context) context.Context { return ctx }
