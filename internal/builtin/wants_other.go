//go:build !linux

package builtin

import (
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Wants returns no rules: the plugins need Linux.
func Wants(*plugin.Request) ([]netfilter.Rule, error) {
	return nil, nil
}
