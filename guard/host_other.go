//go:build !linux

package guard

import (
	"context"

	"github.com/embedcni/cni"
)

// host is a namespace, which other systems do not have.
type host struct{}

func openHost(string, Class) (*host, error) { return nil, cni.ErrNotSupported }

func (*host) close() error                                   { return nil }
func (*host) sources(*guard) []source                        { return nil }
func (*host) do(fn func() error) error                       { return fn() }
func (*host) usesLegacyTables(context.Context) (bool, error) { return false, nil }
