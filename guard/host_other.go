//go:build !linux

package guard

import (
	"context"

	"github.com/embedcni/cni"
)

// host is a namespace, which other systems do not have.
type host struct{ sources []source }

func (*guard) openHost() (*host, error) { return nil, cni.ErrNotSupported }

func (*host) close() error                                   { return nil }
func (*host) do(fn func() error) error                       { return fn() }
func (*host) usesLegacyTables(context.Context) (bool, error) { return false, nil }
