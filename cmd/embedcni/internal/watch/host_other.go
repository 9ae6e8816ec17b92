//go:build !linux

package watch

import (
	"context"

	"github.com/embedcni/cni"
)

type host struct{}

func openHost(string) (*host, error) { return nil, cni.ErrNotSupported }

func (*host) close() error { return nil }

func (*host) listen(context.Context, func()) error { return cni.ErrNotSupported }
