//go:build !linux

package builtin

import (
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// Loopback returns nil: the plugins need Linux.
func Loopback(string) plugin.Plugin { return nil }

func plugins() map[string]plugin.Plugin { return nil }

// Wants returns no rules.
func Wants(*plugin.Request) (fwrules.Rules, error) { return fwrules.Rules{}, nil }
