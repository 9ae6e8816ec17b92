//go:build !linux

package builtin

import (
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// Wants returns no rules: the plugins need Linux.
func Wants(*plugin.Request) (fwrules.Rules, error) {
	return fwrules.Rules{}, nil
}
