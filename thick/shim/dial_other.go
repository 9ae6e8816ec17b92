//go:build !linux

package shim

import (
	"context"
	"net"
)

func dial(ctx context.Context, path string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}
